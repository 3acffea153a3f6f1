import type { Command } from 'commander';
import { formatSpec, type KvSpec, parseSpec } from '../codec/spec.ts';
import { zoo } from '../codec/zoo.ts';
import { type MemoryReport, type ModelShape, memoryReport, whatFits } from '../plan/memory.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { ShapeError } from '../util/errors.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../util/units.ts';
import { formatTable } from './table.ts';

interface Options {
  layers: number;
  kvHeads: number;
  headDim: number;
  context: number;
  budget: number;
  pageTokens: number;
  tier?: Tier[];
  json?: boolean;
}

/** How many tokens a tier holds; undefined for a server, whose memory is its own setting. */
interface TierCapacity {
  tier: Tier['type'];
  tokens?: number;
}

type Row =
  | (MemoryReport & { tokens: number; sequences: number; tiers?: TierCapacity[] })
  | { spec: string; refused: string };

export function addEstimate(program: Command): void {
  program
    .command('estimate')
    .argument('[specs...]', 'codec specs (default: all codecs)')
    .description('estimate how many tokens and sequences fit into a memory budget, per codec')
    .requiredOption('--layers <n>', 'layers with a KV cache', parseCount)
    .requiredOption('--kv-heads <n>', 'KV heads per layer', parseCount)
    .requiredOption('--head-dim <n>', 'head dimension', parseCount)
    .option('--context <n>', 'tokens per sequence, e.g. 131072 or 128k', parseCount, 4096)
    .option('--budget <size>', 'memory for the cache, e.g. 20GiB', parseBytes, 2 ** 33)
    .option('--tier <list>', 'also what tiers hold: host=4GiB,disk=/dir:50GiB', parseTiers)
    .option('--page-tokens <n>', 'tokens per page', parseCount, 128)
    .option('--json', 'print rows as JSON')
    .addHelpText(
      'after',
      '\nExample:\n  kvasir estimate --layers 36 --kv-heads 8 --head-dim 128 --context 131072 --budget 20GiB',
    )
    .action((specs: string[], options: Options) => {
      const selected = specs.length > 0 ? specs : zoo;
      const rows = selected.map(parseSpec).map(spec => estimateRow(spec, options));
      console.log(options.json ? JSON.stringify(rows, null, 1) : render(rows, options));
    });
}

function estimateRow(spec: KvSpec, options: Options): Row {
  const shape: ModelShape = options;
  try {
    const report = memoryReport(spec, shape, options.context);
    const tiers = options.tier?.map(tier => ({
      tier: tier.type,
      tokens: 'capacity' in tier ? whatFits(report, tier.capacity).tokens : undefined,
    }));
    return { ...report, ...whatFits(report, options.budget), tiers };
  } catch (error) {
    if (error instanceof ShapeError) return { spec: formatSpec(spec), refused: error.message };
    throw error;
  }
}

function render(rows: Row[], { layers, kvHeads, headDim, context, budget, tier: tiers = [] }: Options): string {
  const fits = rows.filter(row => 'tokens' in row);
  return [
    `${layers} layers, ${kvHeads} KV heads of ${headDim}, sequences of ${formatCount(context)} tokens, ${formatBytes(budget)}`,
    formatTable(
      [
        ...['codec', 'code bits', 'B/token', 'tokens', 'per sequence', 'f16 part', 'ratio', 'sequences'],
        ...tiers.map(({ type }) => `on ${type}`),
      ],
      fits.map(row => [
        row.spec,
        row.codeBits.toFixed(3),
        formatCount(row.bytesPerToken),
        formatCount(row.tokens),
        formatBytes(row.totalBytes),
        formatBytes(row.windowBytes + row.paddingBytes),
        `${row.ratio.toFixed(2)}x`,
        formatCount(row.sequences),
        ...(row.tiers ?? []).map(({ tokens }) => (tokens === undefined ? 'as set there' : formatCount(tokens))),
      ]),
    ),
    ...rows.filter(row => 'refused' in row).map(row => `${row.spec}: not available. ${row.refused}`),
    '',
    'tokens: what the budget holds in sealed pages. per sequence: all bytes of one sequence, including its f16 sinks,',
    'window, unsealed page and padding. ratio: compared with an f16 cache.',
    ...(tiers.length > 0 ? ['on host, on disk: tokens that this tier holds, besides those in memory.'] : []),
  ].join('\n');
}
