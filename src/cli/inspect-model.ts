/** `kvasir inspect MODEL`: the metadata of a model, and the presets, sizes and expected divergence of its KV cache. */
import { toPrintable } from '../hub/format.ts';
import type { TensorInfo } from '../model/gguf.ts';
import { type KeyBias, readKeyBias } from '../model/key-bias.ts';
import type { ExpertsConfig } from '../model/model-config.ts';
import type { RopeConfig } from '../model/rope.ts';
import { memoryReport } from '../plan/memory.ts';
import { DEFAULT_PRESET } from '../plan/presets.ts';
import type { Profile } from '../plan/profile.ts';
import { platform } from '../platform/node.ts';
import type { Tier } from '../store/tiers.ts';
import { UnsupportedError } from '../util/errors.ts';
import { formatBytes, formatCount, formatFileSize } from '../util/units.ts';
import { openInspectedFile } from './inspect-file.ts';
import { comparePresets, presetTable } from './inspect-presets.ts';
import { measureSizes, sizeTable } from './inspect-sizes.ts';
import { findModelProfile } from './profile-flag.ts';
import { formatCache } from './stats.ts';
import { formatFields, formatPlural, formatTable, printResult } from './table.ts';

interface Flags {
  kv?: string[];
  context?: number;
  memory?: number;
  tier?: Tier[];
  profile?: string;
  tensors?: boolean;
  json?: boolean;
}

const MAIN_CODECS = ['f16', 'q8_0', 'q4_0', 'tq4', 'tq4/tq3', 'tq3', 'tq2'];

export async function showModel(model: string, flags: Flags): Promise<void> {
  try {
    printResult(flags.json, await inspectModel(model, flags), inspection => render(inspection, flags.tier));
  } catch (error) {
    if (!(error instanceof UnsupportedError)) throw error;
    printResult(flags.json, { model, runs: false, reason: error.message }, ({ reason }) => `does not run: ${reason}`);
    process.exitCode = 1;
  }
}

async function inspectModel(model: string, flags: Flags) {
  const file = await openInspectedFile(model, flags.context);
  const { gguf, config, tokenizer, isDownloaded } = file;
  // One request per layer would take long.
  const keyBias = isDownloaded ? await readKeyBias(gguf, config).finally(gguf.close) : undefined;
  const { profile, path } = await findModelProfile(file, model, flags.profile);
  const { context = config.context, memory = platform.memoryLimit(), tier: tiers } = flags;
  const tensors = [...gguf.tensors.values()];
  const weights = tensors.reduce((sum, { bytes }) => sum + bytes, 0);
  const room = Math.max(0, memory - weights);
  const presets = comparePresets(file, context, room, profile);
  const { kv: spec, ...chosen } = presets.find(({ preset }) => preset === DEFAULT_PRESET)!;
  const codecs = flags.kv ?? [...new Set([...MAIN_CODECS, ...measuredCodecs(profile)])];
  const text = (key: string) => {
    const value = gguf.metadata.get(key);
    return typeof value === 'string' ? toPrintable(value) : undefined;
  };
  const nameOf = (id: number | undefined) => (id === undefined ? undefined : toPrintable(tokenizer.tokenText(id)));
  const template = gguf.metadata.get('tokenizer.chat_template');
  return {
    model,
    runs: weights < memory,
    isDownloaded,
    bytes: { weights, memory },
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
    template: typeof template === 'string' ? { characters: template.length, note: file.template.note } : undefined,
    keyBias,
    profile: path,
    cache: { preset: chosen.preset, spec, bits: chosen.bits, predicted: chosen.predicted },
    context,
    room,
    presets,
    memory: measureSizes(codecs, { shape: config, context, room, tiers, profile }),
    ...(flags.tensors && { tensors: tensors.map(({ name, type, shape, bytes }) => ({ name, type, shape, bytes })) }),
  };
}

const describeTemplate = ({ characters, note }: { characters: number; note?: string }): string =>
  `${formatCount(characters)} characters${note ? `. ${toPrintable(note)}` : ''}`;

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

type Inspection = Awaited<ReturnType<typeof inspectModel>>;

function render(inspection: Inspection, tiers?: readonly Tier[]): string {
  const { files, isDownloaded, config, parameters, types, tokenizer, template, keyBias, profile } = inspection;
  const { cache, context } = inspection;
  const { room, presets, memory, tensors } = inspection;
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  const boundaryTokens = [tokenizer.bos && `BOS ${tokenizer.bos}`, `EOS ${tokenizer.ends.join(', ') || 'none'}`];
  return [
    ...formatFields([
      ['model', `${config.name} (${config.architecture}), ${formatCount(parameters)} parameters`],
      ['file', files.map(({ name }) => name).join(', ') + (isDownloaded ? '' : ' (on the hub, not downloaded)')],
      ['runs', runsText(inspection)],
      ['size', formatFileSize(bytes)],
      ['layers', `${config.layers} of width ${formatCount(config.width)}, feed-forward ${formatCount(config.ffn)}`],
      ['experts', config.experts && expertsText(config.experts)],
      [
        'attention',
        `${formatPlural(config.heads, 'query head')}, ${formatPlural(config.kvHeads, 'KV head')}, head dimension ${config.headDim}`,
      ],
      ['windows', windowsText(config)],
      ['', windowBytesText(config, context)],
      ['context', `${formatCount(config.context)} tokens`],
      ['rope', ropeText(config.rope)],
      ['', config.localRope && `in layers with a window: ${ropeText(config.localRope)}`],
      ['parts', partsText(config)],
      ['tokenizer', `${tokenizer.kind} (${tokenizer.pre ?? 'default'}), ${formatCount(tokenizer.vocab)} tokens`],
      ['', boundaryTokens.filter(Boolean).join(', ')],
      ['template', template ? describeTemplate(template) : 'none; ChatML is used'],
      ['cache', formatCache(cache)],
      ['profile', profile ?? 'none; kvasir calibrate MODEL learns one'],
      ['K bias', keyBias?.isLarge ? keyBiasText(keyBias) : undefined],
    ]),
    '',
    formatTable(
      ['weights', 'tensors', 'values', 'bytes'],
      types.map(row => [row.type, row.tensors, formatCount(row.values), formatBytes(row.bytes)]),
    ),
    '',
    `The KV cache of one sequence of ${formatCount(context)} tokens, by preset`,
    ...presetTable(presets, room, profile !== undefined),
    '',
    'and by codec',
    ...sizeTable(memory, { tiers }),
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

const runsText = ({ runs, bytes: { weights, memory } }: Inspection): string =>
  runs
    ? 'yes'
    : `not in this memory: the weights take ${formatBytes(weights)}, and ${formatBytes(memory)} are available`;

function ropeText({ base, dims, scaling, factors }: RopeConfig): string {
  const scaled = scaling.type === 'none' ? '' : `, ${scaling.type} x${scaling.factor}`;
  return `base ${formatCount(base)}, ${dims} dims${scaled}${factors ? `, ${factorsText(factors)}` : ''}`;
}

/** LongRoPE has two sets of factors; `--context` chooses. */
const factorsText = (tensor: string): string =>
  `frequency factors${tensor.includes('short') ? ' for short contexts' : tensor.includes('long') ? ' for long contexts' : ''}`;

const expertsText = ({ count, used, shared, denseLayers }: ExpertsConfig): string =>
  [
    `${used} of ${count} per token`,
    shared && 'a shared one',
    denseLayers > 0 && `none in the first ${formatPlural(denseLayers, 'layer')}`,
  ]
    .filter(Boolean)
    .join(', ');

function windowsText({ attentionWindows }: Inspection['config']): string | undefined {
  const windows = attentionWindows.filter(window => window !== undefined);
  if (windows.length === 0) return undefined;
  return `${windows.length} layers see the last ${formatCount(windows[0])} tokens, the others all`;
}

/** What the windows save, whatever the codec. */
function windowBytesText(config: Inspection['config'], context: number): string | undefined {
  if (config.attentionWindows.every(window => window === undefined)) return undefined;
  const { totalBytes, f16Bytes } = memoryReport('f16', config, context);
  return `an f16 cache of ${formatCount(context)} tokens takes ${formatBytes(totalBytes)}, and without windows ${formatBytes(f16Bytes)}`;
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
