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

/** A row of vectors: one per head. */
export interface RowShape {
  heads: number;
  headDim: number;
}

/** Returns the number of rows. New vectors are stored in f16 first, so keys and values must fit in it. */
export function countRows(name: string, x: Float32Array, { heads, headDim }: RowShape, storedAsF16: boolean): number {
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

export function checkSameRows(rows: Record<string, number>): void {
  const [[firstName, first], ...others] = Object.entries(rows);
  for (const [name, count] of others) {
    if (count !== first)
      throw new ShapeError(
        `${firstName} and ${name} must have the same number of rows, one per token; got ${first} and ${count}.`,
      );
  }
}
