/** `kvasir inspect`: what a model file says of itself, and what its cache would cost. */
import type { Command } from 'commander';
import { openModelFile } from '../engine/engine.ts';
import { ShapeError } from '../errors.ts';
import type { TensorInfo } from '../model/gguf.ts';
import { printable } from '../model/hub/text.ts';
import type { RopeConfig } from '../model/rope.ts';
import { type MemoryReport, memoryReport } from '../plan/memory.ts';
import { formatBytes, formatCount, formatFileSize, parseCount } from '../units.ts';
import { table } from './table.ts';

interface Options {
  context?: number;
  kv: string;
  tensors?: boolean;
  json?: boolean;
}

export function addInspect(program: Command): void {
  program
    .command('inspect')
    .description('what a model is made of, and the memory its cache takes by codec')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--context <n>', "tokens of a sequence (default: the model's own)", parseCount)
    .option('--kv <specs>', 'codecs to count', 'f16,q8_0,q4_0,tq4,tq4/tq3,tq3,tq2')
    .option('--tensors', 'list every tensor')
    .option('--json', 'the findings as JSON')
    .action(async (model: string, options: Options) => {
      const found = await examine(model, options);
      console.log(options.json ? JSON.stringify(found, null, 1) : render(found));
    });
}

async function examine(model: string, options: Options) {
  const { gguf, config, tokenizer } = await openModelFile(model);
  await gguf.close();
  const tensors = [...gguf.tensors.values()];
  const text = (key: string) => {
    const value = gguf.metadata.get(key);
    return typeof value === 'string' ? printable(value) : undefined;
  };
  const nameOf = (id: number | undefined) => (id === undefined ? undefined : printable(tokenizer.tokenText(id)));
  const template = gguf.metadata.get('tokenizer.chat_template');
  return {
    files: gguf.shards.map(({ name, size }) => ({ name, bytes: size })),
    config: { ...config, name: printable(config.name) },
    parameters: tensors.reduce((sum, tensor) => sum + valuesOf(tensor), 0),
    types: typesOf(tensors),
    tokenizer: {
      kind: text('tokenizer.ggml.model'),
      pre: text('tokenizer.ggml.pre'),
      vocab: tokenizer.vocabSize,
      bos: nameOf(tokenizer.bos),
      eos: nameOf(tokenizer.eos),
      addBos: tokenizer.addBos,
      ends: [...tokenizer.endIds].map(nameOf),
    },
    template: typeof template === 'string' ? { characters: template.length } : undefined,
    memory: options.kv.split(',').map(kv => memoryOf(kv, config, options.context ?? config.context)),
    ...(options.tensors && { tensors: tensors.map(({ name, type, shape, bytes }) => ({ name, type, shape, bytes })) }),
  };
}

const valuesOf = ({ shape }: TensorInfo): number => shape.reduce((a, b) => a * b, 1);

function typesOf(tensors: TensorInfo[]) {
  const types = new Map<string, { type: string; tensors: number; values: number; bytes: number }>();
  for (const tensor of tensors) {
    const row = types.get(tensor.type) ?? { type: tensor.type, tensors: 0, values: 0, bytes: 0 };
    row.tensors++;
    row.values += valuesOf(tensor);
    row.bytes += tensor.bytes;
    types.set(tensor.type, row);
  }
  return [...types.values()].sort((a, b) => b.bytes - a.bytes);
}

/** A codec that cannot have this model's head dimension says why. */
function memoryOf(kv: string, shape: Parameters<typeof memoryReport>[1], context: number) {
  try {
    return memoryReport(kv, shape, context);
  } catch (error) {
    if (error instanceof ShapeError) return { spec: kv, refused: error.message };
    throw error;
  }
}

type Findings = Awaited<ReturnType<typeof examine>>;

function render({ files, config, parameters, types, tokenizer, template, memory, tensors }: Findings): string {
  const line = (name: string, text: string) => `${name.padEnd(13)}${text}`;
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  const marks = [
    tokenizer.bos && `begins with ${tokenizer.bos}`,
    `ends with ${tokenizer.ends.join(', ') || 'nothing'}`,
  ];
  const counted = memory.filter((row): row is MemoryReport => 'totalBytes' in row);
  return [
    line('model', `${config.name} (${config.architecture}), ${formatCount(parameters)} parameters`),
    line('file', files.map(({ name }) => name).join(', ')),
    line('size', formatFileSize(bytes)),
    line('layers', `${config.layers} of width ${formatCount(config.width)}, feed-forward ${formatCount(config.ffn)}`),
    line('attention', `${config.heads} heads on ${config.kvHeads} KV heads of ${config.headDim} dims`),
    line('context', `${formatCount(config.context)} tokens`),
    line('rope', ropeText(config.rope)),
    line('parts', partsText(config)),
    line('tokenizer', `${tokenizer.kind} (${tokenizer.pre ?? 'default'}), ${formatCount(tokenizer.vocab)} tokens`),
    line('', marks.filter(Boolean).join(', ')),
    line('template', template ? `its own, ${formatCount(template.characters)} characters` : 'none; ChatML stands in'),
    '',
    table(
      ['weights', 'tensors', 'values', 'bytes'],
      types.map(row => [row.type, row.tensors, formatCount(row.values), formatBytes(row.bytes)]),
    ),
    '',
    `The cache of one sequence of ${formatCount(counted[0]?.context ?? config.context)} tokens:`,
    table(
      ['codec', 'code bits', 'B/token', 'in all', 'ratio'],
      counted.map(row => [
        row.spec,
        row.codeBits.toFixed(3),
        formatCount(row.bytesPerToken),
        formatBytes(row.totalBytes),
        `${row.ratio.toFixed(2)}x`,
      ]),
    ),
    ...memory.flatMap(row => ('refused' in row ? [`${row.spec}: refused. ${row.refused}`] : [])),
    ...(tensors
      ? [
          '',
          table(
            ['tensor', 'type', 'shape', 'bytes'],
            tensors.map(t => [t.name, t.type, t.shape.join(' x '), t.bytes]),
          ),
        ]
      : []),
  ].join('\n');
}

function ropeText({ base, dims, scaling, hasFactors }: RopeConfig): string {
  const scaled = scaling.type === 'none' ? '' : `, ${scaling.type} x${scaling.factor}`;
  return `base ${formatCount(base)}, ${dims} dims${scaled}${hasFactors ? ', frequency factors' : ''}`;
}

const partsText = ({ qkvBias, qkNorm, tiedOutput }: Findings['config']): string =>
  [
    qkvBias && 'biases on Q, K and V',
    qkNorm && 'norms on Q and K',
    tiedOutput ? 'embedding is output' : 'own output matrix',
  ]
    .filter(Boolean)
    .join(', ');
