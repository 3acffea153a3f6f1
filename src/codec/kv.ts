/** Creates the codecs of a spec: one per side, or both as a `KvCodec`, the interface of the codec library. */

import { attend, type Segment } from '../kernel/js/attend.ts';
import { firstCodedRow, sealedPagesAt, skippedTokens, visibleSinks } from '../kernel/visibility.ts';
import { ShapeError, SpecError } from '../util/errors.ts';
import type { Codec, KeyCodec, Shape, Side, ValueCodec } from './codec.ts';
import type { SideRequest } from './family.ts';
import { gaussianSamples, type Learned, type Samples } from './learned.ts';
import {
  F16,
  type F16Window,
  familyOf,
  findVariant,
  formatSide,
  formatSpec,
  type KvSpec,
  type SideSpec,
  toSpec,
  windowOf,
} from './spec.ts';
import { type Validation, validateCodec } from './validate.ts';

export interface KvShape {
  headDim: number;
  /** Default: 1. */
  kvHeads?: number;
  /** A multiple of 16. Default: 128. */
  pageTokens?: number;
  /** RoPE frequency of each adjacent pair of the keys' dims, in radians per position. */
  ropeFrequencies?: Float64Array;
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
  readonly window: Required<F16Window>;
  /** Packs full pages; sinks, the recent window and the unfinished page stay in f16. */
  encode(keys: Float32Array, values: Float32Array): KvSegment[];
  decode(segments: readonly KvSegment[]): { keys: Float32Array; values: Float32Array };
  /** Attention of a query [query head][dim] over segments of this or other codecs of the same shape. */
  attend(query: Float32Array, segments: readonly Segment[]): Float32Array;
  /** Measures the round-trip error on seeded Gaussian vectors and compares it with each side's budget. */
  validate(): Validation[];
}

/** A segment with codecs that can decode it. */
export interface KvSegment extends Segment {
  keys: KeyCodec;
  values: ValueCodec;
}

export function createCodec(spec: string | KvSpec, shape: KvShape, learned: KvLearned = {}): KvCodec {
  const parsed = toSpec(spec);
  const full = checkShape(shape);
  const { keys, values } = createPair(parsed, full, learned);
  const window = windowOf(parsed);
  return {
    spec: formatSpec(parsed),
    shape: full,
    keys,
    values,
    window,
    encode: (k, v) => encodeAll(k, v, { keys, values }, window),
    decode: decodeAll,
    attend: (query, segments) => attend(checkQuery(query, full), segments, full),
    validate: () => [validateCodec(keys, 'key'), validateCodec(values, 'value')],
  };
}

const createPair = (spec: KvSpec, shape: Shape, learned: KvLearned = {}): CodecPair => ({
  keys: createSideCodec(spec.key, 'key', shape, learned.key),
  values: createSideCodec(spec.value, 'value', shape, learned.value),
});

/** The codec of keys or of values alone. */
export function createSideCodec(spec: SideSpec, side: Side, shape: Shape, learned: Learned = {}): Codec {
  return familyOf(spec).family.create({ ...createRequest(spec, side, shape), learned });
}

/** Trains the arrays that a spec's codecs need on samples of one layer, for `createCodec`. */
export function learn(spec: string | KvSpec, shape: KvShape, samples: { key: Samples; value: Samples }): KvLearned {
  const { key, value } = toSpec(spec);
  const full = checkShape(shape);
  return {
    key: learnSide(key, 'key', full, samples.key),
    value: learnSide(value, 'value', full, samples.value),
  };
}

/** Untrained arrays of the right lengths, for callers that need only sizes: these do not depend on the data. */
export function placeholderLearned(spec: KvSpec, shape: KvShape): KvLearned {
  const full = checkShape(shape);
  const createPlaceholder = (side: Side) => {
    const { placeholderLearned } = familyOf(spec[side]).family;
    return placeholderLearned
      ? placeholderLearned(createRequest(spec[side], side, full))
      : learnSide(spec[side], side, full, gaussianSamples(full, 1));
  };
  return { key: createPlaceholder('key'), value: createPlaceholder('value') };
}

/** Whether a spec's codecs need learned arrays, which a model's profile provides. */
export const needsProfile = (spec: KvSpec): boolean => profileNeeds(spec).includes(true);

/** Whether a spec's codecs use learned arrays: they need them, or have defaults without them. */
export const usesProfile = (spec: KvSpec): boolean => profileNeeds(spec).some(Boolean);

/** Samples of a layer that a spec's codecs should be trained on; 0 if any number will do. */
export function recommendedSamples(spec: KvSpec, shape: KvShape): number {
  const full = checkShape(shape);
  const samplesFor = (side: Side) =>
    familyOf(spec[side]).family.recommendedSamples?.(createRequest(spec[side], side, full)) ?? 0;
  return Math.max(samplesFor('key'), samplesFor('value'));
}

const profileNeeds = ({ key, value }: KvSpec): (boolean | 'optional')[] =>
  [key, value].map(side => {
    const { family } = familyOf(side);
    return family.learn !== undefined && (family.needsLearned?.(side.variants, side.base) ?? true);
  });

export function learnSide(spec: SideSpec, side: Side, shape: Shape, samples: Samples): Learned {
  return familyOf(spec).family.learn?.({ ...createRequest(spec, side, shape), samples }) ?? {};
}

function createRequest(spec: SideSpec, side: Side, shape: Shape): SideRequest {
  const { family, match } = familyOf(spec);
  const variants = new Map(
    spec.variants.map(text => {
      const found = findVariant(family, text);
      if (!found) throw new SpecError(`${family.title} has no variant "-${text}".`);
      return [found.variant.name, found.number];
    }),
  );
  return {
    spec: formatSide(spec),
    match,
    side,
    shape,
    has: name => variants.has(name),
    numberOf: (name, defaultValue) => variants.get(name) ?? defaultValue,
  };
}

export function checkShape({ headDim, kvHeads = 1, pageTokens = 128, ropeFrequencies }: KvShape): Shape {
  const whole = (n: number, low: number, high: number) => Number.isInteger(n) && n >= low && n <= high;
  if (!whole(headDim, 4, 1024)) throw new ShapeError(`headDim must be a whole number from 4 to 1024, not ${headDim}.`);
  if (!whole(kvHeads, 1, 1024)) throw new ShapeError(`kvHeads must be a whole number from 1 to 1024, not ${kvHeads}.`);
  if (!whole(pageTokens, 16, 4096) || pageTokens % 16 !== 0)
    throw new ShapeError(`pageTokens must be a multiple of 16 from 16 to 4096, not ${pageTokens}.`);
  if (ropeFrequencies && (2 * ropeFrequencies.length > headDim || !ropeFrequencies.every(Number.isFinite)))
    throw new ShapeError(
      `ropeFrequencies must hold at most ${headDim / 2} finite numbers for ${headDim} dims; it holds ` +
        `${ropeFrequencies.length}.`,
    );
  return { headDim, kvHeads, pageTokens, ropeFrequencies };
}

function checkQuery(query: Float32Array, { headDim, kvHeads }: Shape): Float32Array {
  if (query.length === 0 || query.length % (headDim * kvHeads) !== 0)
    throw new ShapeError(
      `The length of a query must be a multiple of ${kvHeads} KV heads x ${headDim} dims = ${headDim * kvHeads}; ` +
        `got ${query.length}.`,
    );
  return query;
}

type CodecPair = Pick<KvCodec, 'keys' | 'values'>;

function encodeAll(
  k: Float32Array,
  v: Float32Array,
  codecs: CodecPair,
  { sink, recent }: Required<F16Window>,
): KvSegment[] {
  const { headDim, kvHeads, pageTokens } = codecs.keys.shape;
  const rowLength = headDim * kvHeads;
  const tokens = k.length / rowLength;
  if (!Number.isInteger(tokens) || v.length !== k.length)
    throw new ShapeError(
      `keys and values must have the same length, a multiple of ${kvHeads} heads x ${headDim} dims = ${rowLength}; ` +
        `got ${k.length} and ${v.length}.`,
    );
  const encodeSegment = (from: number, to: number, { keys, values }: CodecPair, skip: number): KvSegment => {
    const pack = (codec: KeyCodec | ValueCodec, x: Float32Array) => {
      const page = new Uint8Array(codec.pageBytes);
      const rows = x.slice(from * rowLength, to * rowLength);
      const first = firstCodedRow({ sinks: skip, pageTokens: to - from }, 0);
      for (let t = 0; t < first; t++) rows.copyWithin(t * rowLength, first * rowLength, (first + 1) * rowLength);
      codec.encode(rows, to - from, page, from);
      return page;
    };
    return { keys, values, keyPage: pack(keys, k), valuePage: pack(values, v), start: from, tokens: to - from, skip };
  };
  const f16Segment = (from: number, to: number) => {
    const shape = { ...codecs.keys.shape, pageTokens: Math.ceil((to - from) / 16) * 16 };
    return encodeSegment(from, to, createPair(F16, shape), 0);
  };

  // As the query after these tokens sees them.
  const pages = sealedPagesAt(tokens, { pageTokens, recent });
  const segments: KvSegment[] = [];
  const sinks = visibleSinks(pages, { pageTokens, sinks: sink });
  if (sinks > 0) segments.push(f16Segment(0, sinks));
  for (let page = 0; page < pages; page++) {
    const start = page * pageTokens;
    const skip = Math.min(pageTokens, skippedTokens(start, pages, { pageTokens, sinks: sink }));
    segments.push(encodeSegment(start, start + pageTokens, codecs, skip));
  }
  if (tokens > pages * pageTokens) segments.push(f16Segment(pages * pageTokens, tokens));
  return segments;
}

function decodeAll(segments: readonly KvSegment[]): { keys: Float32Array; values: Float32Array } {
  const { headDim, kvHeads } = segments[0]?.keys.shape ?? { headDim: 0, kvHeads: 0 };
  const rowLength = headDim * kvHeads;
  const end = Math.max(0, ...segments.map(({ start, tokens }) => start + tokens));
  const keys = new Float32Array(end * rowLength);
  const values = new Float32Array(end * rowLength);
  for (const { keys: keyCodec, values: valueCodec, keyPage, valuePage, start, tokens, skip } of segments) {
    const unpack = (codec: KeyCodec | ValueCodec, page: Uint8Array, out: Float32Array) => {
      const decoded = new Float32Array(tokens * rowLength);
      codec.decode(page, tokens, decoded, start);
      out.set(decoded.subarray(skip * rowLength), (start + skip) * rowLength);
    };
    unpack(keyCodec, keyPage, keys);
    unpack(valueCodec, valuePage, values);
  }
  return { keys, values };
}
