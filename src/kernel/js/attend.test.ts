import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ALL_CASES } from '../../../test/support/matrix.ts';
import { createCodec, type KvSegment } from '../../codec/kv.ts';
import { createRandom, normals } from '../../codec/parts/random.ts';
import { norm } from '../../codec/parts/vector.ts';
import { type AttentionState, attentionOutput, emptyState, mergeStates } from '../attention-state.ts';
import { attend, attendHead } from './attend.ts';

const TOLERANCE = 1.3e-4;
const SHAPE = { headDim: 64, kvHeads: 2 };
const HEADS = 6;

/** Softmax attention in float64. */
function exact(query: Float32Array, keys: Float32Array, values: Float32Array): Float64Array {
  const { headDim, kvHeads } = SHAPE;
  const tokens = keys.length / (headDim * kvHeads);
  const out = new Float64Array(query.length);
  for (let h = 0; h < query.length / headDim; h++) {
    const kvHead = Math.floor((h * kvHeads) / (query.length / headDim));
    const at = (t: number) => (t * kvHeads + kvHead) * headDim;
    const scores = Array.from({ length: tokens }, (_, t) => {
      let dot = 0;
      for (let i = 0; i < headDim; i++) dot += query[h * headDim + i] * keys[at(t) + i];
      return dot / Math.sqrt(headDim);
    });
    const m = Math.max(...scores);
    const weights = scores.map(s => Math.exp(s - m));
    const l = weights.reduce((a, b) => a + b, 0);
    for (let t = 0; t < tokens; t++) {
      for (let i = 0; i < headDim; i++) out[h * headDim + i] += (weights[t] / l) * values[at(t) + i];
    }
  }
  return out;
}

describe('attend', () => {
  const LENGTHS = [1, 2, 15, 127, 128, 129, 500];
  it.each(ALL_CASES ? [...LENGTHS, 1024, 4096] : LENGTHS)(
    'matches float64 attention over the decoded pages, %i tokens',
    tokens => {
      const random = createRandom(tokens);
      const length = tokens * SHAPE.headDim * SHAPE.kvHeads;
      const [keys, values] = [normals(random, length), normals(random, length)];
      const query = normals(random, HEADS * SHAPE.headDim).map(x => 2 * x);
      for (const spec of ['tq4', 'tq3u', 'kivi2g32', 'oscar2g32', 'tq25', 'q4_0h', 'f16']) {
        const codec = createCodec(spec, SHAPE);
        const segments = codec.encode(keys, values);
        const decoded = codec.decode(segments);
        const expected = exact(query, decoded.keys, decoded.values);
        const actual = codec.attend(query, segments);
        const worst = Math.max(...actual.map((x, i) => Math.abs(x - expected[i])));
        expect(worst, spec).toBeLessThanOrEqual(TOLERANCE);
      }
    },
  );

  it('supports any mix of codecs, different ones for keys and values, with f16 segments between them', () => {
    const random = createRandom(7);
    const width = SHAPE.headDim * SHAPE.kvHeads;
    const query = normals(random, HEADS * SHAPE.headDim);
    const segments: KvSegment[] = [];
    const [keys, values] = [[] as number[], [] as number[]];
    for (const spec of ['tq4/tq2', 'f16', 'kivi4g32', 'kivi4g32', 'tq35', 'q8_0', 'tq4/tq2', 'oscar2g32-xh']) {
      const codec = createCodec(`${spec}+sink0`, SHAPE);
      const [k, v] = [normals(random, 128 * width), normals(random, 128 * width)];
      const part = codec.encode(k, v);
      const decoded = codec.decode(part);
      segments.push(...part);
      keys.push(...decoded.keys);
      values.push(...decoded.values);
    }
    const expected = exact(query, Float32Array.from(keys), Float32Array.from(values));
    const actual = attend(query, segments, SHAPE);
    expect(Math.max(...actual.map((x, i) => Math.abs(x - expected[i])))).toBeLessThanOrEqual(TOLERANCE);
  });

  it('adds the contribution of the mean of a page to scores of centered keys', () => {
    const random = createRandom(8);
    const width = SHAPE.headDim * SHAPE.kvHeads;
    const mean = normals(random, width).map(x => 3 * x);
    const codec = createCodec('tq4', SHAPE);
    const keys = normals(random, 300 * width).map((x, i) => x + mean[i % width]);
    const values = normals(random, 300 * width);
    const query = normals(random, HEADS * SHAPE.headDim);
    const segments = codec.encode(keys, values);
    const decoded = codec.decode(segments);
    const expected = exact(query, decoded.keys, decoded.values);
    const actual = codec.attend(query, segments);
    expect(Math.max(...actual.map((x, i) => Math.abs(x - expected[i])))).toBeLessThanOrEqual(TOLERANCE);
  });

  it('returns zero over no tokens', () => {
    const query = normals(createRandom(1), HEADS * SHAPE.headDim);
    expect(attend(query, [], SHAPE).every(x => x === 0)).toBe(true);
    expect(attentionOutput(emptyState(4))).toEqual(new Float32Array(4));
  });

  it('does not overflow if scores are far apart', () => {
    const codec = createCodec('f16', { headDim: 64 });
    const keys = new Float32Array(3 * 64);
    keys[0] = 60000;
    keys[64] = -60000;
    const values = Float32Array.from({ length: 3 * 64 }, (_, i) => Math.floor(i / 64) + 1);
    const query = new Float32Array(64);
    query[0] = 60000;
    expect(codec.attend(query, codec.encode(keys, values))[5]).toBe(1);
  });
});

describe('attention states', () => {
  const state = fc
    .tuple(
      fc.array(fc.float({ min: -9, max: 9, noNaN: true }), { minLength: 3, maxLength: 3 }),
      fc.float({ min: -20, max: 20, noNaN: true }),
    )
    .map(([o, m]): AttentionState => ({ o: Float32Array.from(o), m, l: 1 }));
  const copy = (s: AttentionState): AttentionState => ({ ...s, o: s.o.slice() });
  const merged = (...states: AttentionState[]) => {
    const total = emptyState(3);
    for (const s of states) mergeStates(total, copy(s));
    return total;
  };
  const close = (a: AttentionState, b: AttentionState) => {
    expect(norm(attentionOutput(a).map((x, i) => x - attentionOutput(b)[i]))).toBeLessThan(1e-4);
    expect(a.m).toBe(b.m);
  };

  it('can be merged in any order and grouping', () => {
    fc.assert(
      fc.property(state, state, state, (a, b, c) => {
        close(merged(a, b, c), merged(c, a, b));
        close(merged(merged(a, b), c), merged(a, merged(b, c)));
      }),
    );
  });

  it('do not change when merged with the state over no tokens', () => {
    fc.assert(fc.property(state, a => close(merged(a, emptyState(3)), a)));
    expect(merged(emptyState(3), emptyState(3))).toEqual(emptyState(3));
  });

  it('of all segments merge to the state of the whole sequence', () => {
    const random = createRandom(11);
    const codec = createCodec('tq4+sink0', { headDim: 64 });
    const [keys, values] = [normals(random, 512 * 64), normals(random, 512 * 64)];
    const segments = codec.encode(keys, values);
    const query = normals(random, 64);
    const options = { headDim: 64, kvHeads: 1 };
    const whole = attendHead(query, segments, 0, options);
    const parts = emptyState(64);
    for (const segment of [...segments].reverse()) mergeStates(parts, attendHead(query, [segment], 0, options));
    expect(parts.m).toBe(whole.m);
    expect(Math.max(...attentionOutput(parts).map((x, i) => Math.abs(x - attentionOutput(whole)[i])))).toBeLessThan(
      1e-6,
    );
  });
});
