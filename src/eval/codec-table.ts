/** One row a codec and head dimension: what it stores, what it loses on each vector set, what attention makes of it. */
import type { Side } from '../codec/codec.ts';
import { checkShape, createCodec, type KvCodec, learnSide } from '../codec/kv.ts';
import { type Learned, samplesOf } from '../codec/learned.ts';
import { createRandom, normals } from '../codec/parts/random.ts';
import { norm } from '../codec/parts/vector.ts';
import { familyOf, formatSide, parseSpec, type SideSpec } from '../codec/spec.ts';
import { type Loss, measureLoss } from '../codec/validate.ts';
import { ShapeError } from '../errors.ts';
import { bitsOf } from '../plan/plan.ts';
import { makeVectors, turnOf, vectorSets } from './vectors.ts';

/** One page: all codecs in seconds, and losses of those that learn nothing within 4 % of those on 1,024 vectors. */
export const VECTORS = 128;
/** Vectors of each kind that codecs learn from, beside those that are measured: at least as many. */
export const learnedFrom = (count: number): number => Math.max(256, count);
const QUERIES = 8;

export interface CodecRow {
  spec: string;
  dim: number;
  /** Code bits a value, keys and values together. */
  bits: number;
  bytesPerVector: { key: number; value: number };
  ratio: number;
  /** Of keys, by kind of vectors. */
  loss: Record<string, Loss>;
  /** Of Gaussian values. */
  valueLoss: Loss;
  /** |output - output in float| / |output in float|, keys of the rope set, window as the spec says. */
  attentionError: number;
}

/** A codec that cannot have this head dimension, and why. */
export interface RefusedRow {
  spec: string;
  dim: number;
  refused: string;
}

/** Rows of codecs at one head dimension, each as soon as it is measured on `count` vectors of every set. */
export function* codecRows(specs: readonly string[], dim: number, count = VECTORS): Generator<CodecRow | RefusedRow> {
  const lab = createLab(dim, count);
  for (const spec of specs) {
    try {
      yield measure(spec, lab);
    } catch (error) {
      if (!(error instanceof ShapeError)) throw error;
      yield { spec, dim, refused: error.message };
    }
  }
}

type Lab = ReturnType<typeof createLab>;

/** What all rows share: vectors are made once, and codecs that learn the same learn once. */
function createLab(dim: number, count: number) {
  const shape = checkShape({ headDim: dim, turn: turnOf(dim) });
  const sets = Object.fromEntries(
    Object.keys(vectorSets).map(name => {
      const { x, others } = makeVectors(name, dim, learnedFrom(count), 1);
      return [name, { x: x.subarray(0, count * dim), samples: samplesOf(others, shape) }];
    }),
  );
  const learned = new Map<string, Learned>();
  const learnFrom = (set: string, side: SideSpec, kind: Side): Learned => {
    const { title, learnsAlike } = familyOf(side).family;
    const key = [set, kind, learnsAlike ? title : formatSide(side)].join();
    const known = learned.get(key) ?? learnSide(side, kind, shape, sets[set].samples);
    learned.set(key, known);
    return known;
  };
  return {
    dim,
    count,
    sets,
    /** A codec that learned from one set's keys and another's values. */
    create(spec: string, keys: string, values: string): KvCodec {
      const { key, value } = parseSpec(spec);
      return createCodec(spec, shape, { key: learnFrom(keys, key, 'key'), value: learnFrom(values, value, 'value') });
    },
  };
}

function measure(spec: string, lab: Lab): CodecRow {
  const loss = Object.fromEntries(
    Object.entries(lab.sets).map(([name, { x }]) => [name, measureLoss(lab.create(spec, name, 'gaussian').keys, x)]),
  );
  const codec = lab.create(spec, 'rope', 'gaussian');
  const { pageTokens } = codec.shape;
  const bits = bitsOf(codec);
  return {
    spec: codec.spec,
    dim: lab.dim,
    bits,
    bytesPerVector: { key: codec.keys.pageBytes / pageTokens, value: codec.values.pageBytes / pageTokens },
    ratio: 16 / bits,
    loss,
    valueLoss: measureLoss(codec.values, lab.sets.gaussian.x),
    attentionError: attentionError(codec, lab.sets.rope.x, lab.count),
  };
}

/** Queries that look for some of the keys, as a model's do, over keys with structure and values without. */
function attentionError(codec: KvCodec, keys: Float32Array, count: number): number {
  const d = codec.shape.headDim;
  const random = createRandom(2);
  const values = normals(random, count * d);
  const exact = createCodec('f16', codec.shape);
  const [packed, plain] = [codec.encode(keys, values), exact.encode(keys, values)];
  let error = 0;
  for (let i = 0; i < QUERIES; i++) {
    const at = Math.floor(((i + 0.5) * count) / QUERIES) * d;
    const query = normals(random, d).map((noise, j) => noise + keys[at + j] / 2);
    const truth = exact.attend(query, plain);
    const got = codec.attend(query, packed);
    error += norm(got.map((value, j) => value - truth[j])) / norm(truth) / QUERIES;
  }
  return error;
}
