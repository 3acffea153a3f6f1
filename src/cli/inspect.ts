/** `kvasir inspect`: a model file's metadata, and the size of its KV cache per codec. */
import type { Command } from 'commander';
import { openModelFile, planShape } from '../engine/engine.ts';
import { resolveProfile } from '../engine/profile.ts';
import { toPrintable } from '../hub/format.ts';
import type { TensorInfo } from '../model/gguf.ts';
import { type KeyBias, readKeyBias } from '../model/key-bias.ts';
import type { RopeConfig } from '../model/rope.ts';
import { AUTO } from '../plan/auto.ts';
import { memoryReport } from '../plan/memory.ts';
import { choosePreset, DEFAULT_PRESET } from '../plan/presets.ts';
import { measuredDivergence, type Profile } from '../plan/profile.ts';
import { ShapeError } from '../util/errors.ts';
import { formatBytes, formatCount, formatFileSize, parseCount } from '../util/units.ts';
import { formatCache } from './cache-choice.ts';
import { PROFILE_HELP, resolveProfileFlag } from './profile-flag.ts';
import { formatShort, formatTable } from './table.ts';

interface Options {
  context?: number;
  kv?: string;
  profile?: string;
  tensors?: boolean;
  json?: boolean;
}

const MAIN_CODECS = ['f16', 'q8_0', 'q4_0', 'tq4', 'tq4/tq3', 'tq3', 'tq2'];

export function addInspect(program: Command): void {
  program
    .command('inspect')
    .description('show the metadata of a model file, and the size and expected divergence of its KV cache per codec')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--context <n>', "tokens per sequence (default: the model's context)", parseCount)
    .option(
      '--kv <specs>',
      `codecs to compare, comma-separated (default: ${MAIN_CODECS}, and those that the profile has measured)`,
    )
    .option('--profile <file>', PROFILE_HELP)
    .option('--tensors', 'list every tensor')
    .option('--json', 'print as JSON')
    .action(async (model: string, options: Options) => {
      const inspection = await inspectModel(model, options);
      console.log(options.json ? JSON.stringify(inspection, null, 1) : render(inspection));
    });
}

async function inspectModel(model: string, options: Options) {
  const file = await openModelFile(model);
  const { gguf, config, tokenizer } = file;
  const keyBias = await readKeyBias(gguf, config.layers).finally(gguf.close);
  const { profile, notice } = await resolveProfile(file, [AUTO], await resolveProfileFlag(options.profile, model));
  if (notice) console.error(notice);
  const { preset, spec, bits, predicted } = choosePreset(DEFAULT_PRESET, planShape(file), profile);
  const codecs = options.kv?.split(',') ?? [...new Set([...MAIN_CODECS, ...measuredCodecs(profile)])];
  const tensors = [...gguf.tensors.values()];
  const text = (key: string) => {
    const value = gguf.metadata.get(key);
    return typeof value === 'string' ? toPrintable(value) : undefined;
  };
  const nameOf = (id: number | undefined) => (id === undefined ? undefined : toPrintable(tokenizer.tokenText(id)));
  const template = gguf.metadata.get('tokenizer.chat_template');
  return {
    files: gguf.shards.map(({ name, size }) => ({ name, bytes: size })),
    config: { ...config, name: toPrintable(config.name) },
    parameters: tensors.reduce((sum, tensor) => sum + countValues(tensor), 0),
    types: summarizeTypes(tensors),
    tokenizer: {
      kind: text('tokenizer.ggml.model'),
      pre: text('tokenizer.ggml.pre'),
      vocab: tokenizer.vocabSize,
      bos: nameOf(tokenizer.bos),
      eos: nameOf(tokenizer.eos),
      addBos: tokenizer.addBos,
      ends: [...tokenizer.eosIds].map(nameOf),
    },
    template: typeof template === 'string' ? { characters: template.length } : undefined,
    keyBias,
    cache: { preset, spec, bits, predicted },
    memory: codecs.map(kv => reportMemory(kv, config, options.context ?? config.context, profile)),
    ...(options.tensors && { tensors: tensors.map(({ name, type, shape, bytes }) => ({ name, type, shape, bytes })) }),
  };
}

const measuredCodecs = (profile?: Profile): string[] =>
  (profile?.measurements ?? []).map(({ kv }) => kv).filter(kv => !kv.startsWith('auto'));

const countValues = ({ shape }: TensorInfo): number => shape.reduce((a, b) => a * b, 1);

function summarizeTypes(tensors: TensorInfo[]) {
  const types = new Map<string, { type: string; tensors: number; values: number; bytes: number }>();
  for (const tensor of tensors) {
    const row = types.get(tensor.type) ?? { type: tensor.type, tensors: 0, values: 0, bytes: 0 };
    row.tensors++;
    row.values += countValues(tensor);
    row.bytes += tensor.bytes;
    types.set(tensor.type, row);
  }
  return [...types.values()].sort((a, b) => b.bytes - a.bytes);
}

/** The cache size and what the profile has measured, or why the codec does not support this head dimension. */
function reportMemory(kv: string, shape: Parameters<typeof memoryReport>[1], context: number, profile?: Profile) {
  try {
    const report = memoryReport(kv, shape, context);
    return { ...report, divergence: measuredDivergence(profile, report.spec) };
  } catch (error) {
    if (error instanceof ShapeError) return { spec: kv, refused: error.message };
    throw error;
  }
}

type Inspection = Awaited<ReturnType<typeof inspectModel>>;

function render(inspection: Inspection): string {
  const { files, config, parameters, types, tokenizer, template, keyBias, cache, memory, tensors } = inspection;
  const line = (name: string, text: string) => `${name.padEnd(13)}${text}`;
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  const boundaryTokens = [tokenizer.bos && `BOS ${tokenizer.bos}`, `EOS ${tokenizer.ends.join(', ') || 'none'}`];
  const reports = memory.filter(row => 'totalBytes' in row);
  const isMeasured = reports.some(({ divergence }) => divergence !== undefined);
  return [
    line('model', `${config.name} (${config.architecture}), ${formatCount(parameters)} parameters`),
    line('file', files.map(({ name }) => name).join(', ')),
    line('size', formatFileSize(bytes)),
    line('layers', `${config.layers} of width ${formatCount(config.width)}, feed-forward ${formatCount(config.ffn)}`),
    line('attention', `${config.heads} query heads, ${config.kvHeads} KV heads, head dimension ${config.headDim}`),
    line('context', `${formatCount(config.context)} tokens`),
    line('rope', ropeText(config.rope)),
    line('parts', partsText(config)),
    line('tokenizer', `${tokenizer.kind} (${tokenizer.pre ?? 'default'}), ${formatCount(tokenizer.vocab)} tokens`),
    line('', boundaryTokens.filter(Boolean).join(', ')),
    line('template', template ? `${formatCount(template.characters)} characters` : 'none; ChatML is used'),
    line('cache', formatCache(cache)),
    ...(keyBias?.isLarge ? [line('K bias', keyBiasText(keyBias))] : []),
    '',
    formatTable(
      ['weights', 'tensors', 'values', 'bytes'],
      types.map(row => [row.type, row.tensors, formatCount(row.values), formatBytes(row.bytes)]),
    ),
    '',
    `KV cache of one sequence of ${formatCount(reports[0]?.context ?? config.context)} tokens:`,
    formatTable(
      ['codec', 'code bits', 'B/token', 'total', 'ratio', ...(isMeasured ? ['expected divergence'] : [])],
      reports.map(row => [
        row.spec,
        row.codeBits.toFixed(3),
        formatCount(row.bytesPerToken),
        formatBytes(row.totalBytes),
        `${row.ratio.toFixed(2)}x`,
        ...(isMeasured ? [row.divergence === undefined ? 'not in the profile' : formatShort(row.divergence)] : []),
      ]),
    ),
    ...memory.flatMap(row => ('refused' in row ? [`${row.spec}: not available. ${row.refused}`] : [])),
    ...(tensors
      ? [
          '',
          formatTable(
            ['tensor', 'type', 'shape', 'bytes'],
            tensors.map(t => [t.name, t.type, t.shape.join(' x '), t.bytes]),
          ),
        ]
      : []),
  ].join('\n');
}

function ropeText({ base, dims, scaling, factors }: RopeConfig): string {
  const scaled = scaling.type === 'none' ? '' : `, ${scaling.type} x${scaling.factor}`;
  return `base ${formatCount(base)}, ${dims} dims${scaled}${factors ? ', frequency factors' : ''}`;
}

const keyBiasText = ({ largest, median }: KeyBias): string =>
  `up to ${formatCount(Math.round(largest.norm))} (layer ${largest.layer}; median ${formatCount(Math.round(median))}): ` +
  `codecs of few bits that share a scale across channels need centered keys.\n${' '.repeat(13)}` +
  'tq, q4_0, q8_0 and vec center them; the -raw variants do not';

const partsText = ({ qkvBias, qkNorm, tiedOutput }: Inspection['config']): string =>
  [
    qkvBias && 'biases on Q, K and V',
    qkNorm && 'norms on Q and K',
    tiedOutput ? 'tied output embedding' : 'separate output matrix',
  ]
    .filter(Boolean)
    .join(', ');
