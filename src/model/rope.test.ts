import { describe, expect, it } from 'vitest';
import { quantize } from '../../test/support/quantize.ts';
import { seeded } from '../../test/support/random.ts';
import { dequantize } from '../kernel/weights/dequantize.ts';
import { weightBytes } from '../kernel/weights/types.ts';
import { FormatError, ShapeError } from '../util/errors.ts';
import { checkFrequencyFactors, interleaveHalves, type RopeConfig, ropeFrequencies, ropeTable } from './rope.ts';

const plain: RopeConfig = {
  base: 10000,
  dims: 64,
  pairing: 'adjacent',
  scaling: { type: 'none' },
  attnFactor: 1,
};
const yarn = { type: 'yarn', factor: 4, originalContext: 32768, betaFast: 32, betaSlow: 1 } as const;

describe('frequencies', () => {
  it('fall from 1 towards 1 / base', () => {
    const { frequencies, magnitude } = ropeFrequencies(plain);
    expect(frequencies.length).toBe(32);
    expect(frequencies[0]).toBe(1);
    expect(frequencies[16]).toBeCloseTo(0.01, 15);
    expect(frequencies[31]).toBeCloseTo(10000 ** (-31 / 32), 15);
    expect(magnitude).toBe(1);
  });

  it('are divided by a linear factor, and by frequency factors', () => {
    const all = ropeFrequencies(plain).frequencies;
    const linear = ropeFrequencies({ ...plain, scaling: { type: 'linear', factor: 4 }, attnFactor: 1.5 });
    expect(linear.frequencies).toEqual(all.map(x => x / 4));
    expect(linear.magnitude).toBe(1.5);
    const factors = Float32Array.from({ length: 32 }, (_, i) => 1 + i / 4);
    expect(ropeFrequencies({ ...plain, factors: 'rope_freqs.weight' }, factors).frequencies).toEqual(
      all.map((x, i) => x / factors[i]),
    );
    expect(() => ropeFrequencies({ ...plain, factors: 'rope_freqs.weight' })).toThrow(ShapeError);
    expect(() => ropeFrequencies(plain, factors)).toThrow(ShapeError);
    expect(() => ropeFrequencies({ ...plain, factors: 'rope_freqs.weight' }, factors.subarray(1))).toThrow(ShapeError);
  });

  it('under YaRN are kept if high, interpolated if low, mixed between (Qwen 2.5, computed by hand)', () => {
    const qwen: RopeConfig = { ...plain, base: 1e6, dims: 128, scaling: yarn };
    const all = ropeFrequencies({ ...qwen, scaling: { type: 'none' } }).frequencies;
    const { frequencies, magnitude } = ropeFrequencies(qwen);
    // 128 ln(32768 / (2 pi 32)) / (2 ln 1e6) = 23.6, and 39.6 for one rotation: the ramp runs from pair 23 to pair 40.
    expect(frequencies.subarray(0, 24)).toEqual(all.subarray(0, 24));
    expect(frequencies.subarray(40)).toEqual(all.subarray(40).map(x => x / 4));
    for (let i = 24; i < 40; i++) {
      const mix = 1 - (i - 23) / 17;
      expect(frequencies[i] / all[i]).toBeCloseTo((1 - mix) / 4 + mix, 12);
    }
    expect(magnitude).toBeCloseTo(1.1386294361119891, 12);
  });

  it('under YaRN follow its other settings', () => {
    expect(ropeFrequencies({ ...plain, scaling: yarn, attnFactor: 2 }).magnitude).toBeCloseTo(2.2772588722239782, 12);
    const steep = ropeFrequencies({ ...plain, scaling: { ...yarn, betaFast: 1, betaSlow: 1 } }).frequencies;
    expect(steep.every(Number.isFinite)).toBe(true);
    // A context shorter than one rotation puts the whole ramp below the first pair.
    const short = ropeFrequencies({ ...plain, scaling: { ...yarn, originalContext: 1 } }).frequencies;
    expect(short.subarray(1)).toEqual(
      ropeFrequencies(plain)
        .frequencies.subarray(1)
        .map(x => x / 4),
    );
  });

  it('reject factors that are not positive and finite', () => {
    for (const bad of [0, -1, Number.NaN, Number.POSITIVE_INFINITY])
      expect(() => checkFrequencyFactors(Float32Array.of(1, bad), 'rope_freqs.weight')).toThrow(FormatError);
  });
});

describe('a table', () => {
  it('has cos and sin of exact angles, even at large positions', () => {
    const frequencies = ropeFrequencies({ ...plain, base: 500000, attnFactor: 1.25 });
    const { cos, sin } = ropeTable(frequencies, 1_000_000, 3);
    expect(cos.length).toBe(96);
    for (const [p, i] of [
      [0, 0],
      [1, 7],
      [2, 31],
    ]) {
      const angle = (1_000_000 + p) * 500000 ** (-i / 32);
      expect(cos[p * 32 + i]).toBe(Math.fround(1.25 * Math.cos(angle)));
      expect(sin[p * 32 + i]).toBe(Math.fround(1.25 * Math.sin(angle)));
    }
  });

  it('of queries grows beyond each original context, if attention is sharpened', () => {
    const rope = ropeFrequencies({ ...plain, sharpening: { scale: 0.1, originalContext: 100 } });
    const ratio = (position: number) => ropeTable(rope, position, 1, true).cos[0] / ropeTable(rope, position, 1).cos[0];
    expect(ratio(99)).toBe(1);
    expect(ratio(100)).toBeCloseTo(1 + 0.1 * Math.log(2), 6);
    expect(ratio(199)).toBeCloseTo(1 + 0.1 * Math.log(2), 6);
    expect(ratio(700)).toBeCloseTo(1 + 0.1 * Math.log(8), 6);
  });
});

describe('interleaving halves', () => {
  it('moves rows to adjacent pairs per head, and keeps rows that RoPE does not rotate', () => {
    const rows = Uint8Array.from({ length: 2 * 10 * 2 }, (_, i) => i >> 1);
    interleaveHalves(rows, 2, 10, 8);
    const order = [0, 4, 1, 5, 2, 6, 3, 7, 8, 9];
    expect([...rows]).toEqual([...order, ...order.map(row => row + 10)].flatMap(row => [row, row]));
  });

  it('rejects bytes that are not whole heads', () => {
    expect(() => interleaveHalves(new Uint8Array(30), 2, 10, 8)).toThrow(ShapeError);
    expect(() => interleaveHalves(new Uint8Array(40), 2, 10, 12)).toThrow(ShapeError);
    expect(() => interleaveHalves(new Uint8Array(0), 0, 10, 8)).toThrow(ShapeError);
  });

  it('gives the same attention scores after RoPE, in a quantized type', () => {
    const [headDim, width, position] = [16, 64, 5];
    const random = seeded(4);
    const project = (bytes: Uint8Array, x: Float32Array) => {
      const weights = new Float32Array(headDim * width);
      dequantize('Q4_0', bytes, weights);
      return Array.from({ length: headDim }, (_, row) =>
        x.reduce((sum, v, i) => sum + v * weights[row * width + i], 0),
      );
    };
    const normal = (length: number) => Float32Array.from({ length }, () => random.normal());
    const x = normal(width);
    const matrices = [quantize('Q4_0', normal(headDim * width)), quantize('Q4_0', normal(headDim * width))];
    const { frequencies } = ropeFrequencies({ ...plain, dims: headDim });

    const applyRope = (v: number[], position: number, first: (i: number) => number, second: (i: number) => number) => {
      const out = [...v];
      frequencies.forEach((f, i) => {
        const [a, b] = [v[first(i)], v[second(i)]];
        out[first(i)] = a * Math.cos(position * f) - b * Math.sin(position * f);
        out[second(i)] = a * Math.sin(position * f) + b * Math.cos(position * f);
      });
      return out;
    };
    const score = (a: number[], b: number[]) => a.reduce((sum, v, i) => sum + v * b[i], 0);
    const halves = matrices.map((bytes, i) =>
      applyRope(
        project(bytes, x),
        i * position,
        j => j,
        j => j + headDim / 2,
      ),
    );
    for (const bytes of matrices) interleaveHalves(bytes, weightBytes('Q4_0', width), headDim, headDim);
    const adjacent = matrices.map((bytes, i) =>
      applyRope(
        project(bytes, x),
        i * position,
        j => 2 * j,
        j => 2 * j + 1,
      ),
    );
    expect(score(adjacent[0], adjacent[1])).toBeCloseTo(score(halves[0], halves[1]), 6);
  });
});
