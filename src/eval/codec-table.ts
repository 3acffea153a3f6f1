/** A table of codecs by head dimension: bits per value, error on each vector set, and error of the attention output. */

import type { Side } from '../codec/codec.ts';
import { checkShape, createCodec, type KvCodec, learnSide } from '../codec/kv.ts';
import { type Learned, samplesOf } from '../codec/learned.ts';
import { createRandom, normals } from '../codec/parts/random.ts';
import { createRopeFrequencies } from '../codec/parts/rope.ts';
import { norm } from '../codec/parts/vector.ts';
import { F16, familyOf, formatSide, formatSpec, type KvSpec, type SideSpec } from '../codec/spec.ts';
import { type Loss, measureLoss } from '../codec/validate.ts';
import { codecBits } from '../plan/plan.ts';
import { ShapeError } from '../util/errors.ts';
import { makeVectors, vectorSets } from './vectors.ts';

/** One page: all codecs take seconds, and losses are within 4 % of those on 1,024 vectors. */
export const DEFAULT_VECTORS = 128;
/** Number of training vectors per set, separate from the measured ones. */
export const trainingVectors = (count: number): number => Math.max(256, count);
/** The budgets are those of codecs that were trained on this many vectors. */
const VALIDATION_TRAINING = 2048;
const QUERIES = 8;

export interface CodecRow {
  spec: string;
  dim: number;
  /** Code bits per value, averaged over keys and values. */
  bits: number;
  bytesPerVector: { key: number; value: number };
  /** 16 / bits. */
  ratio: number;
  /** Loss of keys, by vector set. */
  loss: Record<string, Loss>;
  /** Loss of Gaussian values. */
  valueLoss: Loss;
  /** Relative error of the attention output against f16, with keys of the rope set and the spec's window. */
  attentionError: number;
}

/** A codec that does not support this head dimension, and why. */
export interface UnsupportedRow {
  spec: string;
  dim: number;
  refused: string;
}

/** Measures codecs at one head dimension on `count` vectors of every set. Yields each row when it is done. */
export const codecRows = (specs: readonly KvSpec[], dim: number, count = DEFAULT_VECTORS) =>
  rowsOf(specs, createFixture(dim, count), measure);

/** Validates codecs at one head dimension, trained and measured on Gaussian vectors. Yields the sides of each spec. */
export const validationRows = (specs: readonly KvSpec[], dim: number) =>
  rowsOf(specs, createFixture(dim, VALIDATION_TRAINING), (spec, { create }) =>
    create(spec, 'gaussian', 'gaussian').validate(),
  );

function* rowsOf<T>(
  specs: readonly KvSpec[],
  fixture: Fixture,
  measureOne: (spec: KvSpec, fixture: Fixture) => T,
): Generator<T | UnsupportedRow> {
  for (const spec of specs) {
    try {
      yield measureOne(spec, fixture);
    } catch (error) {
      if (!(error instanceof ShapeError)) throw error;
      yield { spec: formatSpec(spec), dim: fixture.dim, refused: error.message };
    }
  }
}

type Fixture = ReturnType<typeof createFixture>;

/** What all rows share: the vectors, and learned parameters, so that equal training runs once. */
function createFixture(dim: number, count: number) {
  const shape = checkShape({ headDim: dim, ropeFrequencies: createRopeFrequencies(dim) });
  const sets = Object.fromEntries(
    Object.keys(vectorSets).map(name => {
      const { x, training } = makeVectors(name, dim, trainingVectors(count), 1);
      return [name, { x: x.subarray(0, count * dim), samples: samplesOf(training, shape) }];
    }),
  );
  const learned = new Map<string, Learned>();
  const learnFrom = (set: string, side: SideSpec, kind: Side): Learned => {
    const { title, sharesLearned } = familyOf(side).family;
    const key = [set, kind, sharesLearned ? title : formatSide(side)].join();
    const known = learned.get(key) ?? learnSide(side, kind, shape, sets[set].samples);
    learned.set(key, known);
    return known;
  };
  return {
    dim,
    count,
    sets,
    /** A codec trained on the keys of one set and the values of another. */
    create: (spec: KvSpec, keys: string, values: string): KvCodec =>
      createCodec(spec, shape, {
        key: learnFrom(keys, spec.key, 'key'),
        value: learnFrom(values, spec.value, 'value'),
      }),
  };
}

function measure(spec: KvSpec, fixture: Fixture): CodecRow {
  const loss = Object.fromEntries(
    Object.entries(fixture.sets).map(([name, { x }]) => [
      name,
      measureLoss(fixture.create(spec, name, 'gaussian').keys, x),
    ]),
  );
  const codec = fixture.create(spec, 'rope', 'gaussian');
  const { pageTokens } = codec.shape;
  const bits = codecBits(codec);
  return {
    spec: codec.spec,
    dim: fixture.dim,
    bits,
    bytesPerVector: { key: codec.keys.pageBytes / pageTokens, value: codec.values.pageBytes / pageTokens },
    ratio: 16 / bits,
    loss,
    valueLoss: measureLoss(codec.values, fixture.sets.gaussian.x),
    attentionError: attentionError(codec, fixture.sets.rope.x, fixture.count),
  };
}

/** Each query resembles one of the keys, as in a model; keys have structure, values do not. */
function attentionError(codec: KvCodec, keys: Float32Array, count: number): number {
  const d = codec.shape.headDim;
  const random = createRandom(2);
  const values = normals(random, count * d);
  const exact = createCodec(F16, codec.shape);
  const [packed, plain] = [codec.encode(keys, values), exact.encode(keys, values)];
  let error = 0;
  for (let i = 0; i < QUERIES; i++) {
    const offset = Math.floor(((i + 0.5) * count) / QUERIES) * d;
    const query = normals(random, d).map((noise, j) => noise + keys[offset + j] / 2);
    const expected = exact.attend(query, plain);
    const actual = codec.attend(query, packed);
    error += norm(actual.map((value, j) => value - expected[j])) / norm(expected) / QUERIES;
  }
  return error;
}
