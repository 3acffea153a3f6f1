import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { blockHadamard, hadamard, paley } from './hadamard.ts';
import {
  betaMarginal,
  distortion,
  gaussian,
  lloydMaxTable,
  moments,
  nearest,
  solveLloydMax,
  solveUniformStep,
  uniformStep,
} from './lloyd-max.ts';
import { createQjl } from './qjl.ts';
import { createRandom } from './random.ts';
import { haar, signedHadamard, type Transform } from './rotation.ts';
import { norm } from './vector.ts';

/** The columns of a transform's matrix. */
function columnsOf({ forward }: Transform, d: number): Float64Array[] {
  return Array.from({ length: d }, (_, i) => {
    const x = new Float64Array(d);
    x[i] = 1;
    forward(x);
    return x;
  });
}

function expectOrthonormal(transform: Transform, d: number): void {
  const columns = columnsOf(transform, d);
  let worst = 0;
  for (let i = 0; i < d; i++) {
    for (let j = i; j < d; j++) {
      const dot = columns[i].reduce((sum, x, k) => sum + x * columns[j][k], 0);
      worst = Math.max(worst, Math.abs(dot - (i === j ? 1 : 0)));
    }
  }
  expect(worst).toBeLessThan(1e-12);
  const x = Float64Array.from({ length: d }, (_, i) => Math.sin(i + 1));
  const y = x.slice();
  transform.forward(y);
  transform.inverse(y);
  expect(Math.max(...y.map((value, i) => Math.abs(value - x[i])))).toBeLessThan(1e-12);
}

describe('Hadamard', () => {
  it.each([16, 64, 80, 96, 112, 120, 128, 160, 192, 256])('is orthonormal for %i dims and has an exact inverse', d => {
    expectOrthonormal(hadamard(d), d);
    expectOrthonormal(signedHadamard(d, 7, 3), d);
  });

  it.each([64, 80, 96, 128, 192, 256])('spreads unit vectors of %i dims evenly over all coordinates', d => {
    for (const column of columnsOf(hadamard(d), d)) {
      for (const x of column) expect(Math.abs(x)).toBeCloseTo(1 / Math.sqrt(d), 12);
    }
  });

  it('spreads unit vectors over all blocks of a split dimension', () => {
    const largest = Math.max(...columnsOf(hadamard(112), 112).flatMap(column => [...column].map(Math.abs)));
    expect(largest).toBeLessThan(0.5);
  });

  it.each([12, 20])('has a Paley matrix of order %i', m => {
    const h = paley(m);
    for (let i = 0; i < m; i++) {
      for (let j = 0; j < m; j++) {
        expect(h[i].reduce((sum, x, k) => sum + x * h[j][k], 0)).toBe(i === j ? m : 0);
      }
    }
  });

  it('in blocks transforms each block separately', () => {
    const h = blockHadamard(128, 64);
    expectOrthonormal(h, 128);
    expect(
      columnsOf(h, 128)[70]
        .subarray(0, 64)
        .every(x => x === 0),
    ).toBe(true);
  });

  it('without signs concentrates a constant vector in one coordinate', () => {
    const [bare, signed] = [new Float64Array(64).fill(1), new Float64Array(64).fill(1)];
    hadamard(64).forward(bare);
    signedHadamard(64, 0).forward(signed);
    expect(Math.max(...bare)).toBeCloseTo(8, 10);
    expect(Math.max(...signed.map(Math.abs))).toBeLessThan(4);
  });
});

it.each([5, 33, 64])('a Haar rotation of %i dims is orthonormal', d => expectOrthonormal(haar(d, 3), d));

it('Haar rotations have no preferred sign', () => {
  const traces = Array.from({ length: 200 }, (_, seed) =>
    columnsOf(haar(4, seed), 4).reduce((sum, c, i) => sum + c[i], 0),
  );
  expect(Math.abs(traces.reduce((a, b) => a + b) / 200)).toBeLessThan(0.25);
});

describe('Lloyd-Max', () => {
  const cases = [
    [1, 0.36338],
    [2, 0.117482],
    [3, 0.034548],
    [4, 0.009501],
  ] as const;

  it.each(cases)('the solver reproduces the table of %i bits to 1e-5, with distortion %f', (bits, expected) => {
    const solved = solveLloydMax(bits, gaussian);
    const table = lloydMaxTable(bits, 128);
    expect(Math.max(...solved.map((c, i) => Math.abs(table[2 ** (bits - 1) + i] - c)))).toBeLessThan(1e-5);
    const edges = [0, ...solved.slice(1).map((c, i) => (c + solved[i]) / 2), gaussian.limit];
    expect(distortion(solved, edges, moments(gaussian))).toBeCloseTo(expected, 5);
  });

  it.each([2, 3, 4])('the uniform step of %i bits is optimal', bits => {
    expect(Math.abs(uniformStep(bits, 64) - solveUniformStep(bits, gaussian))).toBeLessThan(2e-3);
  });

  it('uses the exact Beta marginal below 64 dims', () => {
    expect(lloydMaxTable(4, 16)[15]).toBeLessThan(lloydMaxTable(4, 64)[15]);
    expect(solveLloydMax(2, betaMarginal(4096))[1]).toBeCloseTo(1.510418, 2);
  });

  it('finds the nearest centroid', () => {
    const table = lloydMaxTable(4, 64);
    fc.assert(
      fc.property(fc.double({ min: -4, max: 4, noNaN: true }), x => {
        const best = Math.min(...table.map(c => Math.abs(c - x)));
        expect(Math.abs(table[nearest(table, x)] - x)).toBeCloseTo(best, 12);
      }),
    );
  });
});

it('QJL estimates inner products without bias', () => {
  const random = createRandom(5);
  const d = 64;
  let [estimate, truth] = [0, 0];
  for (let seed = 0; seed < 400; seed++) {
    const qjl = createQjl(d, seed);
    const r = Float64Array.from({ length: d }, random.normal);
    const q = r.map(x => x + random.normal());
    truth += q.reduce((sum, x, i) => sum + x * r[i], 0);
    const z = r.slice();
    qjl.project(z);
    const decoded = z.map(x => (x >= 0 ? 1 : -1) * qjl.gain * norm(r));
    qjl.projectBack(decoded);
    estimate += q.reduce((sum, x, i) => sum + x * decoded[i], 0);
  }
  expect(estimate / truth).toBeGreaterThan(0.97);
  expect(estimate / truth).toBeLessThan(1.03);
});
