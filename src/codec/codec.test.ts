import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { contractSuite, createTrained, HEAD_DIMS } from '../../test/support/codec-suite.ts';
import { ALL_CASES, LONG_CASES, matrix } from '../../test/support/matrix.ts';
import { InputError } from '../util/errors.ts';
import { createRopeFrequencies } from './parts/rope.ts';
import { parseSpec } from './spec.ts';
import { families, zoo } from './zoo.ts';

/** Variants and group sizes that are not in the zoo. */
const MORE_SPECS = [
  'tq4-n32',
  'tq4-haar',
  'tq4-r3-seed7',
  'tq3u-raw-n32',
  'tq35-n32',
  'tq25-noqjl',
  'tq25-v-noqjl',
  'tq35-v-n32/tq4',
  'kivi1g32',
  'kivi8g32',
  'kivi2g16',
  'kivi2g64',
  'kivi2g128',
  'kivi2g32-token',
  'kivi2g32-channel',
  'oscar1g32',
  'oscar4g32',
  'oscar2g32-xh',
  'oscar2g128-seed3',
  'mead1',
  'mead4',
  'mead3u',
  'mead4u',
  'tri30i16-rec/tq4',
  'vec-d2b4-smooth',
  'vec-d2b8-had',
  'vec-d8b8/vec-d5b4',
  'vec-d8b12/vec-d4b12',
  'million-d3b6-own/million-d16b1',
];
/** One per kind of variant. */
const VARIANTS = {
  'tq4-haar': 'a dense rotation',
  'tq4-r3-seed7': 'another rotation',
  'tq3u-raw-n32': 'not centered, plain f32 norms',
  'tq25-v-noqjl': 'halves by variance, no sign bits',
  'kivi2g32-token': 'keys per token',
  'kivi2g32-channel': 'values per channel',
  'oscar2g32-xh': 'one norm across heads',
  'tri30i16-rec/tq4': 'reconstructed keys',
  'vec-d2b4-smooth': 'smoothing only',
  'vec-d2b8-had': 'a Hadamard rotation only',
  'million-d3b6-own/million-d16b1': 'a codebook per head and subvector, and one code per head',
};
const SPECS = [...zoo, ...matrix(MORE_SPECS, VARIANTS)];

/** Head dims that a spec rejects, because its blocks or groups do not divide them. */
function rejectedDims(spec: string): number[] {
  if (/^q[48]_0h/.test(spec)) return [80, 96];
  if (/^q[48]_0/.test(spec)) return [80];
  if (spec === 'kivi2g32-channel') return [];
  const products = [...spec.matchAll(/-d(\d+)b/g)].map(([, dims]) => Number(dims));
  if (products.length > 0) return HEAD_DIMS.filter(d => products.some(dims => d % dims !== 0));
  const group = Number(spec.match(/g(\d+)/)?.[1] ?? 1);
  return [64, 80, 96].filter(d => d % group !== 0);
}

/** The smallest head dim that a codec accepts. */
const smallestDim = (spec: string): number => HEAD_DIMS.find(d => !rejectedDims(spec).includes(d)) ?? Number.NaN;

/**
 * Codecs that run at every head dim. The others run at the smallest one; in `npm run test:all` those of the zoo also at one
 * of the larger ones, which take turns, and in `npm run test:long` all codecs at all of them. Most mead codecs and codebooks of 4,096 entries only run at
 * the smallest: training is slow.
 */
const ALL_DIMS: Readonly<Record<string, string>> = {
  tq4: 'a rotation of head dims that are not powers of two',
  tq35: 'two groups of channels',
  q8_0: 'refuses blocks that do not divide a head',
  kivi2g32: 'groups over tokens and over dims',
};

function dimsOf(spec: string): number[] {
  if (/^mead/.test(spec) && !['mead2', 'mead2u'].includes(spec)) return [64];
  if (/b12/.test(spec)) return [smallestDim(spec)];
  if (LONG_CASES || spec in ALL_DIMS) return HEAD_DIMS;
  const larger = HEAD_DIMS.filter(d => d > smallestDim(spec) && !rejectedDims(spec).includes(d));
  const turn =
    ALL_CASES && zoo.includes(spec) && larger.length > 0 ? [larger[SPECS.indexOf(spec) % larger.length]] : [];
  return [...rejectedDims(spec), smallestDim(spec), ...turn];
}

/** A codec of the shape that the contract has trained already. */
function createSmallest(spec: string, meanValue: number) {
  const [headDim, kvHeads] = [smallestDim(spec), 2];
  const mean = new Float32Array(kvHeads * headDim).fill(meanValue);
  return createTrained(spec, { headDim, kvHeads, ropeFrequencies: createRopeFrequencies(headDim) }, mean);
}

for (const spec of SPECS) contractSuite({ spec, rejects: rejectedDims(spec), dims: dimsOf(spec) });

it('the contract covers every base name', () => {
  const bases = families.flatMap(family => family.bases);
  const tested = new Set([...zoo, ...MORE_SPECS].map(parseSpec).flatMap(({ key, value }) => [key.base, value.base]));
  const groupsOnly = (base: string) => base.match(/^oscar2g(16|64)$/);
  expect(bases.filter(base => !tested.has(base) && !groupsOnly(base))).toEqual([]);
});

describe('any finite input', () => {
  const extremes = fc.constantFrom(0, -0, 1e-45, -1e-40, 1e-8, 1, -1, 65504, 1e30, -3.4e38, 3.4e38);
  const values = fc.oneof(fc.float({ noNaN: true, noDefaultInfinity: true }), extremes);
  const vectorOf = (headDim: number) =>
    fc.oneof(
      fc.array(values, { minLength: headDim, maxLength: headDim }),
      values.map(value => Array<number>(headDim).fill(value)),
      fc
        .tuple(values, fc.nat(headDim - 1))
        .map(([value, at]) => Array.from({ length: headDim }, (_, i) => (i === at ? value : 0))),
    );

  it.each(SPECS)('%s encodes it without throwing and decodes finite numbers', spec => {
    const codec = createSmallest(spec, 0.5);
    const { headDim } = codec.keys.shape;
    const vector = vectorOf(headDim);
    fc.assert(
      // One vector per KV head.
      fc.property(fc.array(fc.tuple(vector, vector), { minLength: 1, maxLength: ALL_CASES ? 6 : 3 }), tokens => {
        for (const side of [codec.keys, codec.values]) {
          const page = new Uint8Array(side.pageBytes);
          const out = new Float32Array(2 * headDim * tokens.length);
          side.encode(Float32Array.from(tokens.flat(2)), tokens.length, page, 0);
          side.decode(page, tokens.length, out, 0);
          expect(out.every(Number.isFinite)).toBe(true);
        }
      }),
      { numRuns: ALL_CASES ? 60 : 20 },
    );
  });
});

it.each(SPECS)('%s rejects NaN and Infinity with a typed error that says where', spec => {
  const codec = createSmallest(spec, 0);
  const { headDim } = codec.keys.shape;
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
    const x = new Float32Array(3 * 2 * headDim);
    x[3 * headDim + 5] = bad;
    for (const side of [codec.keys, codec.values]) {
      const encode = () => side.encode(x, 3, new Uint8Array(side.pageBytes), 0);
      expect(encode).toThrow(InputError);
      expect(encode).toThrow('token 1, head 1, dim 5');
    }
  }
});
