/** `kvasir inspect --shape`, and part of the view of a model: the size of a cache per codec, and what fits into memory. */
import { zoo } from '../codec/zoo.ts';
import { type MemoryReport, type ModelShape, memoryReport, whatFits } from '../plan/memory.ts';
import { measuredDivergence, type Profile } from '../plan/profile.ts';
import type { Tier } from '../store/tiers.ts';
import { InputError, ShapeError } from '../util/errors.ts';
import { formatBytes, formatCount, parseCount } from '../util/units.ts';
import { formatShort, formatTable, printResult, refusals } from './table.ts';

/** What a table of sizes is about. */
export interface Sizing {
  shape: ModelShape;
  /** Tokens per sequence. */
  context: number;
  /** Bytes for caches. */
  room: number;
  tiers?: readonly Tier[];
  profile?: Profile;
}

/** How many tokens a tier holds; undefined for a server, whose memory is its own setting. */
interface TierCapacity {
  tier: Tier['type'];
  tokens?: number;
}

export type SizeRow =
  | (MemoryReport & { tokens: number; sequences: number; tiers?: TierCapacity[]; divergence?: number })
  | { spec: string; refused: string };

/** `36x8x128`: layers, KV heads, head dimension. */
export function parseShape(text: string): ModelShape {
  const [, ...parts] = text.match(/^(\d+)x(\d+)x(\d+)$/i) ?? [];
  if (parts.length === 0)
    throw new InputError(`"${text}" is not a shape. Write layers x KV heads x head dimension: 36x8x128.`);
  const [layers, kvHeads, headDim] = parts.map(parseCount);
  return { layers, kvHeads, headDim };
}

export function showSizes(sizing: Sizing, { kv = [...zoo], json }: { kv?: string[]; json?: boolean }): void {
  const { layers, kvHeads, headDim } = sizing.shape;
  printResult(json, measureSizes(kv, sizing), rows =>
    [
      `${layers} layers, ${kvHeads} KV heads of ${headDim}, sequences of ${formatCount(sizing.context)} tokens, ${formatBytes(sizing.room)}`,
      ...sizeTable(rows, sizing),
    ].join('\n'),
  );
}

export const measureSizes = (specs: readonly string[], sizing: Sizing): SizeRow[] =>
  specs.map(spec => measureSize(spec, sizing));

/** The size and what the profile has measured, or why the codec does not support this head dimension. */
function measureSize(spec: string, { shape, context, room, tiers, profile }: Sizing): SizeRow {
  try {
    const report = memoryReport(spec, shape, context);
    return {
      ...report,
      ...whatFits(report, room),
      tiers: tiers?.map(tier => ({
        tier: tier.type,
        tokens: 'capacity' in tier ? whatFits(report, tier.capacity).tokens : undefined,
      })),
      divergence: measuredDivergence(profile, report.spec),
    };
  } catch (error) {
    if (error instanceof ShapeError) return { spec, refused: error.message };
    throw error;
  }
}

export function sizeTable(rows: readonly SizeRow[], { tiers = [] }: Pick<Sizing, 'tiers'>): string[] {
  const sizes = rows.filter(row => 'tokens' in row);
  const isMeasured = sizes.some(({ divergence }) => divergence !== undefined);
  return [
    formatTable(
      [
        ...['codec', 'code bits', 'B/token', 'tokens', 'per sequence', 'f16 part', 'ratio', 'sequences'],
        ...tiers.map(({ type }) => `on ${type}`),
        ...(isMeasured ? ['expected divergence'] : []),
      ],
      sizes.map(row => [
        row.spec,
        row.codeBits.toFixed(3),
        formatCount(row.bytesPerToken),
        formatCount(row.tokens),
        formatBytes(row.totalBytes),
        formatBytes(row.windowBytes + row.paddingBytes),
        `${row.ratio.toFixed(2)}x`,
        formatCount(row.sequences),
        ...(row.tiers ?? []).map(({ tokens }) => (tokens === undefined ? 'as set there' : formatCount(tokens))),
        ...(isMeasured ? [row.divergence === undefined ? 'not in the profile' : formatShort(row.divergence)] : []),
      ]),
    ),
    ...refusals(rows),
    '',
    'tokens: what the memory holds in sealed pages. per sequence: all bytes of one sequence, including its f16 sinks,',
    'window, unsealed page and padding. ratio: compared with f16 for all tokens in all layers.',
    ...(tiers.length > 0 ? ['on host, on disk: tokens that this tier holds, besides those in memory.'] : []),
  ];
}
