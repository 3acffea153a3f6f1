import type { Command } from 'commander';
import type { KeyCodec, ValueCodec } from '../codec/codec.ts';
import { createCodec, placeholderLearned } from '../codec/kv.ts';
import { familyOf, findVariant, type KvSpec, parseSpec } from '../codec/spec.ts';
import type { Validation } from '../codec/validate.ts';
import { zoo } from '../codec/zoo.ts';
import {
  type CodecRow,
  codecRows,
  DEFAULT_VECTORS,
  trainingVectors,
  type UnsupportedRow,
  validationRows,
} from '../eval/codec-table.ts';
import { vectorSets } from '../eval/vectors.ts';
import { formatCount, parseCount, parseCounts } from '../util/units.ts';
import { createProgress } from './progress.ts';
import { formatShort, formatTable, printResult, refusals } from './table.ts';

interface Options {
  dim: number[];
  vectors: number;
  json?: boolean;
  explain?: boolean;
  verify?: boolean;
}

export function addCodecs(program: Command): void {
  program
    .command('codecs')
    .argument('[specs...]', 'codec specs (default: all codecs)')
    .description('measure codecs: bits, bytes, and error on synthetic vectors that resemble real keys')
    .option('-d, --dim <dims>', 'head dimensions, e.g. 64,128', parseCounts, [128])
    .option('--vectors <n>', 'vectors of each kind to measure on', parseCount, DEFAULT_VECTORS)
    .option('--verify', 'compare errors on Gaussian vectors with budgets, and with the bounds that papers prove')
    .option('--json', 'print rows as JSON')
    .option('--explain', 'print the byte layout of a page instead of measuring')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir codecs --dim 64,128\n  kvasir codecs tq4/tq3 kivi2g32 --json\n  kvasir codecs tq4 --explain\n  kvasir codecs tq4 tq35 --verify',
    )
    .action((specs: string[], options: Options) => {
      const selected = (specs.length > 0 ? specs : zoo).map(parseSpec);
      if (options.explain) for (const spec of selected) for (const dim of options.dim) console.log(explain(spec, dim));
      else (options.verify ? verifyCodecs : measureCodecs)(selected, options);
    });
}

/** Prints one array as JSON, or a table per head dimension. */
function printByDim<Row extends { dim: number }>(
  { dim, json }: Options,
  rows: readonly Row[],
  render: (rows: readonly Row[], dim: number) => string,
): void {
  printResult(json, rows, () =>
    dim
      .map(d =>
        render(
          rows.filter(row => row.dim === d),
          d,
        ),
      )
      .join('\n'),
  );
}

function measureCodecs(specs: readonly KvSpec[], options: Options): void {
  const { dim, vectors } = options;
  const progress = createProgress({ title: 'measuring', unit: 'codecs', quiet: !process.stderr.isTTY });
  const rows: (CodecRow | UnsupportedRow)[] = [];
  progress.update(0, specs.length * dim.length);
  for (const d of dim) for (const row of codecRows(specs, d, vectors)) progress.update(rows.push(row));
  progress.end();
  printByDim(options, rows, (ofDim, d) => codecTable(ofDim, d, vectors));
}

/** Prints each codec's error, budget and bounds. The exit status is 1 if a codec exceeds its budget. */
function verifyCodecs(specs: readonly KvSpec[], options: Options): void {
  const rows = options.dim.flatMap(d => [...validationRows(specs, d)].flat().map(row => ({ ...row, dim: d })));
  if (rows.some(row => 'ok' in row && !row.ok)) process.exitCode = 1;
  printByDim(options, rows, verificationTable);
}

function verificationTable(rows: readonly (Validation | UnsupportedRow)[], dim: number): string {
  const lines = rows
    .filter(row => 'ok' in row)
    .map(({ spec, side, mse, budget, ok, bounds }) => [
      ...[spec, `${side}s`, formatShort(mse), formatShort(budget), ok ? 'yes' : 'NO'],
      ...(bounds
        ? [
            bounds.measure === 'mse' ? 'error' : 'product',
            ...[bounds.measured, bounds.lower, bounds.upper].map(formatShort),
            ...[bounds.overLower, bounds.overUpper].map(ratio => `${ratio.toFixed(2)}x`),
          ]
        : Array(6).fill('')),
    ]);
  const bounds = ['bound of', 'measured', 'lower', 'upper', '/lower', '/upper'];
  return [
    `Head dimension ${dim}`,
    formatTable(['codec', 'side', 'error', 'budget', 'ok', ...bounds], lines),
    ...refusals(rows),
    '',
    'error      squared error over squared norm, on 2,048 Gaussian vectors. ok: it is within the budget of this codec',
    'product    squared error of inner products with random unit vectors, times the dims, over the squared norm',
    'lower      no codec with as many bits has a smaller error on all vectors; upper: this codec has at most this error',
    '           (TurboQuant, arXiv 2504.19874; norms are not counted as bits). /lower, /upper: ratios of the measured error',
    '',
  ].join('\n');
}

/** The table for one head dimension, with its legend. */
function codecTable(rows: readonly (CodecRow | UnsupportedRow)[], dim: number, vectors: number): string {
  const measured = rows.filter((row): row is CodecRow => 'bits' in row);
  const sets = Object.keys(vectorSets);
  const header = ['codec', 'bits', 'B/vector', 'ratio', ...sets.flatMap(name => [name, 'cos']), 'values', 'attention'];
  const lines = measured.map(row => [
    row.spec,
    row.bits.toFixed(3),
    formatBytesPerVector(row),
    `${row.ratio.toFixed(2)}x`,
    ...sets.flatMap(name => [formatShort(row.loss[name].mse), row.loss[name].cosine.toFixed(3)]),
    formatShort(row.valueLoss.mse),
    formatShort(row.attentionError),
  ]);
  return [
    `Head dimension ${dim}`,
    formatTable(header, lines),
    ...refusals(rows),
    '',
    'bits       code bits per value: everything a page stores. B/vector: the same in bytes; two numbers are keys/values.',
    `for keys   squared error over squared norm, and mean cosine, measured on ${formatCount(vectors)} vectors of five kinds:`,
    `           (calibrated codecs were trained on ${formatCount(trainingVectors(vectors))} others; real calibration has thousands)`,
    ...sets.map(name => `  ${name.padEnd(9)}${vectorSets[name].about}`),
    'values     squared error of Gaussian values',
    'attention  relative error of the attention output, f16 window as in the spec (default: 16 sinks)',
    '',
  ].join('\n');
}

const formatBytesPerVector = ({ bytesPerVector: { key, value } }: CodecRow) => {
  const [k, v] = [key, value].map(n => Number(n.toFixed(2)));
  return k === v ? String(k) : `${k}/${v}`;
};

/** The meaning of a spec and the byte layout of its pages. */
function explain(spec: KvSpec, dim: number): string {
  const shape = { headDim: dim, kvHeads: 1 };
  const codec = createCodec(spec, shape, placeholderLearned(spec, shape));
  const { window } = codec;
  const sides = [
    { name: 'keys', codec: codec.keys, side: spec.key },
    { name: 'values', codec: codec.values, side: spec.value },
  ];
  return [
    `${codec.spec}, head dimension ${dim}, ${codec.shape.pageTokens} tokens per page, little endian`,
    `f16 window: ${window.sink} sinks, ${window.recent} recent tokens, ${window.edge} first and last layers, and the unsealed page`,
    ...sides.flatMap(({ name, codec, side }) => {
      const { family } = familyOf(side);
      const variants = side.variants.map(text => `  -${text}: ${findVariant(family, text)?.variant.about}`);
      return ['', `${name}: ${codec.spec} (${family.title})`, ...variants, layoutTable(codec)];
    }),
    '',
  ].join('\n');
}

function layoutTable({ fields, pageBytes, shape }: KeyCodec | ValueCodec): string {
  const places = { page: 'page + ', head: 'head + ', rest: 'after + ' };
  const end = { page: 0, head: 0, rest: 0 };
  const lines = (['page', 'head', 'rest'] as const).flatMap(place =>
    fields
      .filter(({ per }) => per === place)
      .map(({ name, bytes, about }) => {
        const offset = end[place];
        end[place] += bytes;
        return [`${places[place]}${formatCount(offset)}`, formatCount(bytes), name, about];
      }),
  );
  return [
    formatTable(['offset', 'bytes', 'field', 'contents'], lines),
    `A head's block has ${formatCount(end.head)} bytes; blocks are stored one after another. ` +
      `${(pageBytes / shape.pageTokens).toFixed(2)} bytes per vector, ${((8 * pageBytes) / shape.pageTokens / shape.headDim).toFixed(3)} code bits per value.`,
  ].join('\n');
}
