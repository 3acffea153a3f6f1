import { describe, expect, it } from 'vitest';
import { createRandom } from '../codec/parts/random.ts';
import {
  allocateMead,
  allocateTurboQuant,
  canAllocateMead,
  canAllocateTurboQuant,
  type LayerSide,
} from './allocate.ts';
import type { Profile } from './profile.ts';

const LEVELS = 7;
const sides: LayerSide[] = [0, 1].flatMap(layer => [
  { layer, side: 'key' as const },
  { layer, side: 'value' as const },
]);
const sensitivities = [
  { key: 0.3, value: 0.02 },
  { key: 0.05, value: 0.1 },
];

/** `count` quads or dims whose loss falls by less with every further level: there the greedy allocation is optimal. */
function convexLosses(seed: number, count: number): Float32Array {
  const random = createRandom(seed);
  const units = Array.from({ length: count }, () => ({
    first: 0.5 + random.uniform(),
    ratio: 0.2 + 0.6 * random.uniform(),
  }));
  return Float32Array.from(
    units.flatMap(u => Array.from({ length: LEVELS }, (_, level) => u.first * u.ratio ** level)),
  );
}

const learned = [0, 1].map(layer => {
  const side = (seed: number) => ({ 'mead.loss': convexLosses(seed, 2), 'mead.step-loss': convexLosses(seed + 50, 3) });
  return { key: side(2 * layer + 1), value: side(2 * layer + 2) };
});
const profileOf = (probes: Profile['sensitivities']) => ({ learned, sensitivities: probes }) as unknown as Profile;

/** The smallest total loss over all allocations of at most `budget`, by dynamic programming. */
function bestTotal(losses: readonly (readonly number[])[], budget: number): number {
  let best = new Array<number>(budget + 1).fill(0);
  for (const row of losses)
    best = best.map((_, room) => Math.min(...row.slice(0, room + 1).map((loss, amount) => loss + best[room - amount])));
  return best[budget];
}

const rowsOf = (array: Float32Array) =>
  Array.from({ length: array.length / LEVELS }, (_, i) => [...array.subarray(i * LEVELS, (i + 1) * LEVELS)]);

describe('TurboQuant', () => {
  const profile = profileOf({ tq2: sensitivities });
  const shape = { layers: sensitivities.length, kvHeads: 1, headDim: 64 };
  /** Norms, and the means of keys. */
  const overhead = 0.25 + 0.0625;
  const bitsOf = (spec: string) => Number(spec.match(/\d/)![0]);
  /** Relative squared errors at 1 to 4 bits, over that at the 2 bits that were measured. */
  const errors = [0.3634, 0.1175, 0.03455, 0.0095].map(error => error / 0.1175);

  it.each([1, 1.5, 2, 2.25, 3, 4].map(bits => bits + 0.3125))(
    '%d bits per value: the best of all allocations',
    bits => {
      const { amounts, predicted } = allocateTurboQuant(profile, sides, bits, shape);
      const total = amounts.reduce((sum, spec) => sum + bitsOf(spec) + overhead, 0);
      expect(total).toBe(bits * sides.length);
      const losses = sides.map(({ layer, side }) => errors.map(error => sensitivities[layer][side] * error));
      expect(predicted).toBeCloseTo(bestTotal(losses, Math.round(total - sides.length * (1 + overhead))), 6);
      const allocatedLosses = sides.map(
        ({ layer, side }, i) => sensitivities[layer][side] * errors[bitsOf(amounts[i]) - 1],
      );
      expect(predicted).toBeCloseTo(
        allocatedLosses.reduce((a, b) => a + b),
        6,
      );
    },
  );

  it('predicts the measured divergence at the measured bits', () => {
    const even = profileOf({ tq2: sensitivities.map(() => ({ key: 0.1, value: 0.1 })) });
    const { amounts, predicted } = allocateTurboQuant(even, sides, 2.3125, shape);
    expect(amounts).toEqual(['tq2', 'tq2', 'tq2', 'tq2']);
    expect(predicted).toBeCloseTo(0.4, 6);
  });

  it('gives the most sensitive side the most bits', () => {
    const { amounts } = allocateTurboQuant(profile, sides, 2.8125, shape);
    expect(amounts).toEqual(['tq4', 'tq1', 'tq2', 'tq3']);
  });
});

describe('mead', () => {
  const profile = profileOf({ mead2: sensitivities });

  /** Losses of all quads in divergence: a side's own allocation at 2 bits has its measured divergence. */
  const weighted = (array: 'mead.loss' | 'mead.step-loss', probes = sensitivities) =>
    sides.flatMap(({ layer, side }) => {
      const measured = rowsOf(learned[layer][side]['mead.loss']);
      const scale = probes[layer][side] / bestTotal(measured, 2 * measured.length);
      return rowsOf(learned[layer][side][array]).map(row => row.map(loss => scale * loss));
    });

  it.each([
    [1.5, 'mead.loss', false],
    [2, 'mead.loss', false],
    [3.25, 'mead.loss', false],
    [1, 'mead.step-loss', true],
    [1.5, 'mead.step-loss', true],
  ] as const)('%d bits per value by %s: the best of all allocations', (bits, array, uniform) => {
    const { amounts, predicted } = allocateMead(profile, sides, bits, uniform);
    const losses = weighted(array);
    const budget = Math.floor(bits * losses.length);
    expect(amounts.map(({ length }) => length)).toEqual(sides.map(() => losses.length / sides.length));
    const flat = amounts.flatMap(amount => [...amount]);
    expect(flat.reduce((a, b) => a + b)).toBe(budget);
    expect(predicted).toBeCloseTo(
      flat.reduce((sum, amount, i) => sum + losses[i][amount], 0),
      5,
    );
    expect(predicted).toBeCloseTo(bestTotal(losses, budget), 5);
  });

  it('uses the sensitivities of the uniform code where the profile has them', () => {
    const doubled = sensitivities.map(({ key, value }) => ({ key: 2 * key, value: 2 * value }));
    const withUniform = profileOf({ mead2: sensitivities, mead2u: doubled });
    const predicted = (by: Profile, uniform: boolean) => allocateMead(by, sides, 2, uniform).predicted;
    expect(predicted(withUniform, true)).toBeCloseTo(2 * predicted(profile, true), 5);
    expect(predicted(withUniform, false)).toBe(predicted(profile, false));
  });
});

it('needs the sensitivities of the family', () => {
  expect([canAllocateMead(profileOf({ mead2: sensitivities })), canAllocateMead(profileOf({}))]).toEqual([true, false]);
  expect(canAllocateTurboQuant(profileOf({ tq2: sensitivities }))).toBe(true);
  expect(canAllocateTurboQuant(profileOf({ mead2: sensitivities }))).toBe(false);
  expect([canAllocateMead(), canAllocateTurboQuant()]).toEqual([false, false]);
});
