/** Codecs for a spec: one a side, and the pair that somebody with vectors of their own works with. */
import { ShapeError } from '../errors.ts';
import { attend, type Segment } from '../kernel/js/attend.ts';
import { firstCodedRow, sealedPages, skippedTokens, visibleSinks } from '../kernel/visibility.ts';
import type { Codec, KeyCodec, Shape, Side, ValueCodec } from './codec.ts';
import type { LearnRequest } from './family.ts';
import { gaussianSamples, type Learned, type Samples } from './learned.ts';
import {
  familyOf,
  findVariant,
  formatSide,
  formatSpec,
  parseSpec,
  type SideSpec,
  type Window,
  windowOf,
} from './spec.ts';
import { type Validation, validateCodec } from './validate.ts';

export interface KvShape {
  headDim: number;
  /** 1 unless given. */
  kvHeads?: number;
  /** 128 unless given; a multiple of 16. */
  pageTokens?: number;
  /** RoPE of the keys: the angle by which each adjacent pair turns a position. */
  turn?: Float64Array;
}

export interface KvLearned {
  key?: Learned;
  value?: Learned;
}

/** One layer's keys and values under one spec. Vectors are [token][kv head][dim]. */
export interface KvCodec {
  readonly spec: string;
  readonly shape: Shape;
  readonly keys: KeyCodec;
  readonly values: ValueCodec;
  readonly window: Required<Window>;
  /** Whole pages packed; sinks, the recent window and the unfinished page in f16. */
  encode(keys: Float32Array, values: Float32Array): KvSegment[];
  decode(segments: readonly KvSegment[]): { keys: Float32Array; values: Float32Array };
  /** Attention of [query head][dim] over segments of this or other codecs of the same shape. */
  attend(query: Float32Array, segments: readonly Segment[]): Float32Array;
  /** Measures the round trip on seeded Gaussian vectors and holds it against each side's budget. */
  validate(): Validation[];
}

/** A segment that can be decoded again. */
export interface KvSegment extends Segment {
  keys: KeyCodec;
  values: ValueCodec;
}

export function createCodec(spec: string, shape: KvShape, learned: KvLearned = {}): KvCodec {
  const parsed = parseSpec(spec);
  const full = checkShape(shape);
  const keys: KeyCodec = createSide(parsed.key, 'key', full, learned.key);
  const values: ValueCodec = createSide(parsed.value, 'value', full, learned.value);
  const window = windowOf(parsed);
  return {
    spec: formatSpec(parsed),
    shape: full,
    keys,
    values,
    window,
    encode: (k, v) => encodeAll(k, v, keys, values, window),
    decode: decodeAll,
    attend: (query, segments) => attend(checkQuery(query, full), segments, full),
    validate: () => [validateCodec(keys, 'key'), validateCodec(values, 'value')],
  };
}

export function createSide(side: SideSpec, kind: Side, shape: Shape, learned: Learned = {}): Codec {
  return familyOf(side).family.create({ ...requestOf(side, kind, shape), learned });
}

/** What a spec's codecs learn from samples of one layer; hand it to `createCodec`. */
export function learn(spec: string, shape: KvShape, samples: { key: Samples; value: Samples }): KvLearned {
  const { key, value } = parseSpec(spec);
  const full = checkShape(shape);
  return {
    key: learnSide(key, 'key', full, samples.key),
    value: learnSide(value, 'value', full, samples.value),
  };
}

/** Stands in for what a spec's codecs learn where only sizes matter: sizes do not depend on the data. */
export function placeholder(spec: string, shape: KvShape): KvLearned {
  const parsed = parseSpec(spec);
  const full = checkShape(shape);
  const of = (kind: Side) => {
    const side = parsed[kind];
    const make = familyOf(side).family.placeholder;
    return make ? make(requestOf(side, kind, full)) : learnSide(side, kind, full, gaussianSamples(full, 1));
  };
  return { key: of('key'), value: of('value') };
}

/** Whether a spec's codecs learn anything at all: those that do need a profile. */
export function learns(spec: string): boolean {
  const { key, value } = parseSpec(spec);
  return [key, value].some(side => {
    const { family } = familyOf(side);
    return family.learn !== undefined && (family.learns?.(side.variants) ?? true);
  });
}

export function learnSide(side: SideSpec, kind: Side, shape: Shape, samples: Samples): Learned {
  return familyOf(side).family.learn?.({ ...requestOf(side, kind, shape), samples }) ?? {};
}

function requestOf(side: SideSpec, kind: Side, shape: Shape): Omit<LearnRequest, 'samples'> {
  const { family, match } = familyOf(side);
  const variants = new Map(
    side.variants.map(text => {
      const { variant, number } = findVariant(family, text)!;
      return [variant.name, number];
    }),
  );
  return {
    spec: formatSide(side),
    match,
    side: kind,
    shape,
    has: name => variants.has(name),
    number: (name, otherwise) => variants.get(name) ?? otherwise,
  };
}

export function checkShape({ headDim, kvHeads = 1, pageTokens = 128, turn }: KvShape): Shape {
  const whole = (n: number, low: number, high: number) => Number.isInteger(n) && n >= low && n <= high;
  if (!whole(headDim, 4, 1024)) throw new ShapeError(`headDim must be a whole number from 4 to 1024, not ${headDim}.`);
  if (!whole(kvHeads, 1, 1024)) throw new ShapeError(`kvHeads must be a whole number from 1 to 1024, not ${kvHeads}.`);
  if (!whole(pageTokens, 16, 4096) || pageTokens % 16 !== 0)
    throw new ShapeError(`pageTokens must be a multiple of 16 from 16 to 4096, not ${pageTokens}.`);
  if (turn && (2 * turn.length > headDim || !turn.every(Number.isFinite)))
    throw new ShapeError(
      `turn must hold at most ${headDim / 2} finite angles for ${headDim} dims; it has ${turn.length}.`,
    );
  return { headDim, kvHeads, pageTokens, turn };
}

function checkQuery(query: Float32Array, { headDim, kvHeads }: Shape): Float32Array {
  if (query.length === 0 || query.length % (headDim * kvHeads) !== 0)
    throw new ShapeError(
      `A query is [query head][dim], and ${kvHeads} KV heads of ${headDim} dims serve equal groups of query heads: ` +
        `its length must be a multiple of ${headDim * kvHeads}, not ${query.length}.`,
    );
  return query;
}

function encodeAll(
  k: Float32Array,
  v: Float32Array,
  keys: KeyCodec,
  values: ValueCodec,
  { sink, recent }: Required<Window>,
): KvSegment[] {
  const { headDim, kvHeads, pageTokens } = keys.shape;
  const vector = headDim * kvHeads;
  const tokens = k.length / vector;
  if (!Number.isInteger(tokens) || v.length !== k.length)
    throw new ShapeError(
      `keys and values must have the same length, a multiple of ${kvHeads} heads x ${headDim} dims = ${vector}; ` +
        `got ${k.length} and ${v.length}.`,
    );
  const part = (from: number, to: number, keyCodec: KeyCodec, valueCodec: ValueCodec, skip: number): KvSegment => {
    const pack = (codec: KeyCodec | ValueCodec, x: Float32Array) => {
      const page = new Uint8Array(codec.pageBytes);
      const rows = x.slice(from * vector, to * vector);
      const first = firstCodedRow({ sinks: skip, pageTokens: to - from }, 0);
      for (let t = 0; t < first; t++) rows.copyWithin(t * vector, first * vector, (first + 1) * vector);
      codec.encode(rows, to - from, page, from);
      return page;
    };
    return {
      keys: keyCodec,
      values: valueCodec,
      keyPage: pack(keyCodec, k),
      valuePage: pack(valueCodec, v),
      start: from,
      tokens: to - from,
      skip,
    };
  };
  const exact = (from: number, to: number) => {
    const shape = { ...keys.shape, pageTokens: Math.ceil((to - from) / 16) * 16 };
    const [keyCodec, valueCodec] = (['key', 'value'] as const).map(side => createSide(F16, side, shape));
    return part(from, to, keyCodec, valueCodec, 0);
  };

  // As the query that comes after these tokens sees them.
  const pages = sealedPages(tokens, { pageTokens, recent });
  const segments: KvSegment[] = [];
  const sinks = visibleSinks(pages, { pageTokens, sinks: sink });
  if (sinks > 0) segments.push(exact(0, sinks));
  for (let page = 0; page < pages; page++) {
    const start = page * pageTokens;
    const skip = Math.min(pageTokens, skippedTokens(start, pages, { pageTokens, sinks: sink }));
    segments.push(part(start, start + pageTokens, keys, values, skip));
  }
  if (tokens > pages * pageTokens) segments.push(exact(pages * pageTokens, tokens));
  return segments;
}

const F16: SideSpec = { base: 'f16', variants: [] };

function decodeAll(segments: readonly KvSegment[]): { keys: Float32Array; values: Float32Array } {
  const { headDim, kvHeads } = segments[0]?.keys.shape ?? { headDim: 0, kvHeads: 0 };
  const vector = headDim * kvHeads;
  const end = Math.max(0, ...segments.map(({ start, tokens }) => start + tokens));
  const keys = new Float32Array(end * vector);
  const values = new Float32Array(end * vector);
  for (const { keys: keyCodec, values: valueCodec, keyPage, valuePage, start, tokens, skip } of segments) {
    const unpack = (codec: KeyCodec | ValueCodec, page: Uint8Array, out: Float32Array) => {
      const decoded = new Float32Array(tokens * vector);
      codec.decode(page, tokens, decoded, start);
      out.set(decoded.subarray(skip * vector), (start + skip) * vector);
    };
    unpack(keyCodec, keyPage, keys);
    unpack(valueCodec, valuePage, values);
  }
  return { keys, values };
}
