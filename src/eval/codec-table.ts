/** One row a codec and head dimension: what it stores, what it loses on each vector set, what attention makes of it. */
import { createCodec, type KvCodec, learn } from '../codec/kv.ts';
import { samplesOf } from '../codec/learned.ts';
import { createRandom, normals } from '../codec/parts/random.ts';
import { norm } from '../codec/parts/vector.ts';
import { type Loss, measureLoss } from '../codec/validate.ts';
import { ShapeError } from '../errors.ts';
import { bitsOf } from '../plan/plan.ts';
import { makeVectors, turnOf, vectorSets } from './vectors.ts';

const TOKENS = 256;
const QUERIES = 16;

export interface CodecRow {
  spec: string;
  dim: number;
  /** Code bits a value, keys and values together. */
  bits: number;
  bytesPerVector: { key: number; value: number };
  ratio: number;
  loss: Record<string, { key: Loss; value: Loss }>;
  /** |output - output in float| / |output in float|, keys of the rope set, window as the spec says. */
  attentionError: number;
}

/** A codec that cannot have this head dimension, and why. */
export interface RefusedRow {
  spec: string;
  dim: number;
  refused: string;
}

export function codecRow(spec: string, dim: number): CodecRow | RefusedRow {
  try {
    return measure(spec, dim);
  } catch (error) {
    if (error instanceof ShapeError) return { spec, dim, refused: error.message };
    throw error;
  }
}

function measure(spec: string, dim: number): CodecRow {
  const shape = { headDim: dim, kvHeads: 1, turn: turnOf(dim) };
  const create = (name: string, values = name) => {
    const { x, others } = makeVectors(name, dim, TOKENS, 1);
    const key = samplesOf(others, shape);
    const value = values === name ? key : samplesOf(makeVectors(values, dim, TOKENS, 1).others, shape);
    return { x, codec: createCodec(spec, shape, learn(spec, shape, { key, value })) };
  };
  const loss: CodecRow['loss'] = {};
  for (const name of Object.keys(vectorSets)) {
    const { x, codec } = create(name);
    loss[name] = { key: measureLoss(codec.keys, x), value: measureLoss(codec.values, x) };
  }
  const { codec } = create('rope', 'gaussian');
  const { pageTokens } = codec.shape;
  const bits = bitsOf(codec);
  return {
    spec: codec.spec,
    dim,
    bits,
    bytesPerVector: { key: codec.keys.pageBytes / pageTokens, value: codec.values.pageBytes / pageTokens },
    ratio: 16 / bits,
    loss,
    attentionError: attentionError(codec),
  };
}

/** Queries that look for some of the keys, as a model's do, over keys with structure and values without. */
function attentionError(codec: KvCodec): number {
  const d = codec.shape.headDim;
  const { x: keys } = makeVectors('rope', d, TOKENS, 1);
  const random = createRandom(2);
  const values = normals(random, TOKENS * d);
  const exact = createCodec('f16', codec.shape);
  const [packed, plain] = [codec.encode(keys, values), exact.encode(keys, values)];
  let error = 0;
  for (let i = 0; i < QUERIES; i++) {
    const at = Math.floor(((i + 0.5) * TOKENS) / QUERIES) * d;
    const query = normals(random, d).map((noise, j) => noise + keys[at + j] / 2);
    const truth = exact.attend(query, plain);
    const got = codec.attend(query, packed);
    error += norm(got.map((value, j) => value - truth[j])) / norm(truth) / QUERIES;
  }
  return error;
}
