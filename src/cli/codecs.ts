import type { Command } from 'commander';
import type { KeyCodec, ValueCodec } from '../codec/codec.ts';
import { createCodec, learn } from '../codec/kv.ts';
import { gaussianSamples } from '../codec/learned.ts';
import { familyOf, findVariant, parseSpec } from '../codec/spec.ts';
import { zoo } from '../codec/zoo.ts';
import { type CodecRow, codecRow, type RefusedRow } from '../eval/codec-table.ts';
import { vectorSets } from '../eval/vectors.ts';
import { formatCount, parseCounts } from '../units.ts';
import { brief, table } from './table.ts';

interface Options {
  dim: number[];
  json?: boolean;
  explain?: boolean;
}

export function addCodecs(program: Command): void {
  program
    .command('codecs')
    .argument('[specs...]', 'codec specs; the whole zoo unless given')
    .description('measure codecs: bits, bytes, and what they lose on vectors that resemble real keys')
    .option('-d, --dim <dims>', 'head dimensions, e.g. 64,128', parseCounts, [128])
    .option('--json', 'rows as JSON')
    .option('--explain', 'print the byte layout of a page instead')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir codecs --dim 64,128\n  kvasir codecs tq4/tq3 kivi2g32 --json\n  kvasir codecs tq4 --explain',
    )
    .action((specs: string[], options: Options) => {
      const chosen = specs.length > 0 ? specs : zoo;
      chosen.forEach(parseSpec);
      if (options.explain) for (const spec of chosen) for (const dim of options.dim) console.log(explain(spec, dim));
      else if (options.json) console.log(JSON.stringify(measure(chosen, options.dim), null, 1));
      else for (const dim of options.dim) console.log(codecTable(chosen, dim));
    });
}

const measure = (specs: readonly string[], dims: number[]) =>
  dims.flatMap(dim => specs.map(spec => codecRow(spec, dim)));

/** The table of one head dimension, with its legend. */
export function codecTable(specs: readonly string[], dim: number): string {
  const rows = measure(specs, [dim]);
  const measured = rows.filter((row): row is CodecRow => 'bits' in row);
  const sets = Object.keys(vectorSets);
  const header = ['codec', 'bits', 'B/vector', 'ratio', ...sets.flatMap(name => [name, 'cos']), 'values', 'attention'];
  const lines = measured.map(row => [
    row.spec,
    row.bits.toFixed(3),
    bytes(row),
    `${row.ratio.toFixed(2)}x`,
    ...sets.flatMap(name => [brief(row.loss[name].key.mse), row.loss[name].key.cosine.toFixed(3)]),
    brief(row.loss.gaussian.value.mse),
    brief(row.attentionError),
  ]);
  const refused = rows.filter((row): row is RefusedRow => 'refused' in row);
  return [
    `Head dimension ${dim}`,
    table(header, lines),
    ...refused.map(row => `${row.spec}: refused. ${row.refused}`),
    '',
    'bits       code bits a value: all that a page stores. B/vector: the same in bytes; two numbers are keys/values.',
    'for keys   squared error over squared norm, and mean cosine, on vectors of five kinds:',
    ...sets.map(name => `  ${name.padEnd(9)}${vectorSets[name].about}`),
    'values     squared error of Gaussian values',
    'attention  relative error of the attention output, f16 window as in the spec (4 sinks unless it says)',
    '',
  ].join('\n');
}

const bytes = ({ bytesPerVector: { key, value } }: CodecRow) => {
  const [k, v] = [key, value].map(n => Number(n.toFixed(2)));
  return k === v ? String(k) : `${k}/${v}`;
};

/** What a spec means, and where every byte of its pages lies. */
function explain(spec: string, dim: number): string {
  const shape = { headDim: dim, kvHeads: 1 };
  const samples = gaussianSamples(shape, 64);
  const codec = createCodec(spec, shape, learn(spec, shape, { key: samples, value: samples }));
  const parsed = parseSpec(spec);
  const { window } = codec;
  const sides = [
    { name: 'keys', codec: codec.keys, side: parsed.key },
    { name: 'values', codec: codec.values, side: parsed.value },
  ];
  return [
    `${codec.spec}, head dimension ${dim}, ${codec.shape.pageTokens} tokens a page, little endian`,
    `f16 window: ${window.sink} sinks, ${window.recent} recent tokens, ${window.edge} first and last layers, and the unfinished page`,
    ...sides.flatMap(({ name, codec, side }) => {
      const { family } = familyOf(side);
      const variants = side.variants.map(text => `  -${text}: ${findVariant(family, text)?.variant.about}`);
      return ['', `${name}: ${codec.spec} (${family.title})`, ...variants, layoutTable(codec)];
    }),
    '',
  ].join('\n');
}

function layoutTable({ fields, pageBytes, shape }: KeyCodec | ValueCodec): string {
  const shared = fields.filter(({ per }) => per === 'page');
  const blocks = fields.filter(({ per }) => per === 'head');
  const rest = fields.filter(({ per }) => per === 'rest');
  const lines = (list: typeof blocks, from: string) => {
    let offset = 0;
    return list.map(({ name, bytes, about }) => {
      const line = [`${from}${formatCount(offset)}`, formatCount(bytes), name, about];
      offset += bytes;
      return line;
    });
  };
  const block = blocks.reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    table(
      ['offset', 'bytes', 'field', 'contents'],
      [...lines(shared, 'page + '), ...lines(blocks, 'head + '), ...lines(rest, 'after + ')],
    ),
    `A head's block is ${formatCount(block)} bytes; heads follow one another. ` +
      `${(pageBytes / shape.pageTokens).toFixed(2)} bytes a vector, ${((8 * pageBytes) / shape.pageTokens / shape.headDim).toFixed(3)} code bits a value.`,
  ].join('\n');
}
