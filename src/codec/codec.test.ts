import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InputError } from '../errors.ts';
import { turnOf } from '../eval/vectors.ts';
import { contractSuite, createTrained } from './codec.case.ts';
import { parseSpec } from './spec.ts';
import { families, zoo } from './zoo.ts';

/** Variants and group sizes that the tables leave out. */
const MORE = [
  'tq4-n32',
  'tq4-haar',
  'tq4-r3-seed7',
  'tq2-nc',
  'tq3u-c-nc-n32',
  'tq35-n32',
  'tq25-noqjl',
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
  'million-d3b6-own/million-d16b1',
];
const SPECS = [...zoo, ...MORE];

/** Blocks and groups that do not divide a head. */
function refusals(spec: string): number[] {
  if (/^q[48]_0h/.test(spec)) return [80, 96];
  if (/^q[48]_0/.test(spec)) return [80];
  if (spec === 'kivi2g32-channel') return [];
  const products = [...spec.matchAll(/-d(\d+)b/g)].map(([, dims]) => Number(dims));
  if (products.length > 0) return [64, 80, 96, 128, 256].filter(d => products.some(dims => d % dims !== 0));
  const group = Number(spec.match(/g(\d+)/)?.[1] ?? 1);
  return [64, 80, 96].filter(d => d % group !== 0);
}

/** Training takes its time: one spec of mead tries all head dims, its kin one. */
const dimsOf = (spec: string) => (/^mead/.test(spec) && !['mead2', 'mead2u'].includes(spec) ? [64] : undefined);

for (const spec of SPECS) contractSuite({ spec, refuses: refusals(spec), dims: dimsOf(spec) });

it('runs the contract over every codec that can be made', () => {
  const bases = families.flatMap(family => family.bases);
  const tested = new Set(SPECS.map(parseSpec).flatMap(({ key, value }) => [key.base, value.base]));
  const groupsOnly = (base: string) => base.match(/^oscar2g(16|64)$/);
  expect(bases.filter(base => !tested.has(base) && !groupsOnly(base))).toEqual([]);
});

describe('any finite input', () => {
  const extremes = fc.constantFrom(0, -0, 1e-45, -1e-40, 1e-8, 1, -1, 65504, 1e30, -3.4e38, 3.4e38);
  const values = fc.oneof(fc.float({ noNaN: true, noDefaultInfinity: true }), extremes);
  const row = fc.oneof(
    fc.array(values, { minLength: 64, maxLength: 64 }),
    values.map(value => Array<number>(64).fill(value)),
    fc.tuple(values, fc.nat(63)).map(([value, at]) => Array.from({ length: 64 }, (_, i) => (i === at ? value : 0))),
  );
  const rows = fc.array(row, { minLength: 1, maxLength: 6 });

  it.each(SPECS)('%s stores it without NaN and without throwing', spec => {
    if (refusals(spec).includes(64)) return;
    const codec = createTrained(spec, { headDim: 64, kvHeads: 1 }, new Float32Array(64).fill(0.5));
    fc.assert(
      fc.property(rows, vectors => {
        for (const side of [codec.keys, codec.values]) {
          const page = new Uint8Array(side.pageBytes);
          const out = new Float32Array(64 * vectors.length);
          side.encode(Float32Array.from(vectors.flat()), vectors.length, page, 0);
          side.decode(page, vectors.length, out, 0);
          expect(out.every(Number.isFinite)).toBe(true);
        }
      }),
      { numRuns: 60 },
    );
  });
});

it.each(SPECS)('%s refuses NaN and Infinity by a typed error that says where', spec => {
  if (refusals(spec).includes(128)) return;
  const codec = createTrained(spec, { headDim: 128, kvHeads: 2, turn: turnOf(128) }, new Float32Array(256));
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
    const x = new Float32Array(3 * 256);
    x[1 * 256 + 128 + 5] = bad;
    for (const side of [codec.keys, codec.values]) {
      const encode = () => side.encode(x, 3, new Uint8Array(side.pageBytes), 0);
      expect(encode).toThrow(InputError);
      expect(encode).toThrow('token 1, head 1, dim 5');
    }
  }
});
