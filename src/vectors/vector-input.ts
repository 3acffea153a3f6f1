/** Validation of what a vector cache is given: its options, layers, and arrays of vectors. */

import { engineRules, loadRules } from '../engine/options.ts';
import { describeValue } from '../util/describe-value.ts';
import { InputError, ShapeError } from '../util/errors.ts';
import { integer, number, rule } from '../util/rules.ts';

export const cacheRules = {
  device: engineRules.device,
  threads: engineRules.threads,
  precise: loadRules.precise,
  kvMemory: loadRules.kvMemory,
  scale: number('a finite number above 0', value => value > 0 && Number.isFinite(value)),
  profile: engineRules.profile,
  learned: rule('an array with one entry per layer', Array.isArray),
};

export const cacheShapeRules = { layers: integer(1, 4096), heads: integer(1, 65536) };

/** The largest f16 number. */
const MAX_F16 = 65504;

/** The dimensions of a cache. */
export interface CacheDims {
  layers: number;
  /** Query heads. */
  heads: number;
  kvHeads: number;
  headDim: number;
}

/** Returns the number of queries. */
export const countQueries = (queries: Float32Array, { heads, headDim }: CacheDims): number =>
  countRows('queries', queries, { heads, headDim }, false);

const countVectors = (name: string, vectors: Float32Array, { kvHeads, headDim }: CacheDims): number =>
  countRows(name, vectors, { heads: kvHeads, headDim }, true);

/** Checks the rows of a sequence in one layer, and returns their number. */
export function countStep(rows: { queries: Float32Array; keys: Float32Array; values: Float32Array }, dims: CacheDims) {
  const queries = countQueries(rows.queries, dims);
  const keys = countVectors('keys', rows.keys, dims);
  return checkSameRows({ queries, keys, values: countVectors('values', rows.values, dims) });
}

/** Checks the vectors of all layers, and returns the number of tokens. */
export function countTokens(keys: readonly Float32Array[], values: readonly Float32Array[], dims: CacheDims): number {
  const { layers } = dims;
  if (keys.length !== layers || values.length !== layers)
    throw new ShapeError(
      `append needs one array per layer, ${layers}; got ${keys.length} of keys and ${values.length} of values.`,
    );
  const counts: Record<string, number> = {};
  for (let layer = 0; layer < layers; layer++) {
    for (const [side, arrays] of Object.entries({ keys, values })) {
      const name = layers === 1 ? side : `${side}[${layer}]`;
      counts[name] = countVectors(name, arrays[layer], dims);
    }
  }
  return checkSameRows(counts);
}

/** Returns the number of rows. New vectors are stored in f16 first, so keys and values must fit in it. */
function countRows(
  name: string,
  x: Float32Array,
  { heads, headDim }: Pick<CacheDims, 'heads' | 'headDim'>,
  storedAsF16: boolean,
): number {
  const rowLength = heads * headDim;
  if (!(x instanceof Float32Array)) throw new InputError(`${name} must be a Float32Array; got ${describeValue(x)}.`);
  if (x.length === 0 || x.length % rowLength !== 0)
    throw new ShapeError(
      `The length of ${name} must be a multiple of ${heads} heads x ${headDim} dims = ${rowLength}, one row or more; got ` +
        `${x.length}.`,
    );
  const max = storedAsF16 ? MAX_F16 : Number.MAX_VALUE;
  const allowed = storedAsF16
    ? `Keys and values must be numbers from -${MAX_F16} to ${MAX_F16}`
    : 'Queries must be finite numbers';
  for (let i = 0; i < x.length; i++) {
    if (Math.abs(x[i]) <= max) continue;
    throw new InputError(`${name}[${i}] is ${x[i]}. ${allowed}.`);
  }
  return x.length / rowLength;
}

function checkSameRows(rows: Record<string, number>): number {
  const [[firstName, first], ...others] = Object.entries(rows);
  for (const [name, count] of others) {
    if (count !== first)
      throw new ShapeError(
        `${firstName} and ${name} must have the same number of rows, one per token; got ${first} and ${count}.`,
      );
  }
  return first;
}
