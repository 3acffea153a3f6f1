/** Automatic plans: bits by sensitivity, within a memory budget, with exact byte counts. */

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createSequence } from '../cache/create-sequence.ts';
import { createPool } from '../cache/pool.ts';
import { codeBits } from '../codec/codec.ts';
import { learn } from '../codec/kv.ts';
import { gaussianSamples } from '../codec/learned.ts';
import { parseSpec } from '../codec/spec.ts';
import { createJsDevice } from '../kernel/js/device.ts';
import { CapacityError, InputError, SpecError } from '../util/errors.ts';
import { choosePlan, formatPlanSpec, isAuto, parsePlanSpec } from './auto.ts';
import { createPlan, fixedBytes, maxTokensIn, type Plan, planBytes, withMode } from './plan.ts';
import type { Profile } from './profile.ts';

const shape = { layers: 4, kvHeads: 2, headDim: 16, pageTokens: 128, ropeFrequencies: Float64Array.of(1, 0.1) };

/** Equal layers, each twice as sensitive as the previous one, keys more than values. */
function makeProfile(): Profile {
  const samples = gaussianSamples(shape, 512);
  const both = ['mead2', 'mead2u', 'tq35-v'].map(spec => learn(spec, shape, { key: samples, value: samples }));
  const learned = {
    key: Object.assign({}, ...both.map(l => l.key)),
    value: Object.assign({}, ...both.map(l => l.value)),
  };
  const sensitivities = Array.from({ length: shape.layers }, (_, i) => ({
    key: 0.002 * 2 ** i,
    value: 0.0005 * 2 ** i,
  }));
  return {
    fingerprint: '0'.repeat(64),
    hash: '1'.repeat(64),
    shape: { ...shape, ropeFrequencies: [...shape.ropeFrequencies] },
    provenance: {
      model: 'test.gguf',
      tokens: 512,
      context: 512,
      samples: 512,
      seed: 0,
      text: 'none',
      sources: [],
      codecs: [],
      version: '0',
    },
    learned: Array(shape.layers).fill(learned),
    sensitivities: { mead2: sensitivities, tq2: sensitivities },
    measurements: [],
  };
}

const profile = makeProfile();
const bitsOf = ({ codecs }: Plan) =>
  codecs.map(({ keys, values }) => ({ key: codeBits(keys), value: codeBits(values) }));

describe('bit allocation', () => {
  it.each(['mead2', 'mead1.5', 'mead3', 'auto:2', 'auto:2.25', 'auto-tq:3'])('%s uses the bits in its name', spec => {
    const requested = Number(spec.match(/[\d.]+/)![0]);
    const { bits } = choosePlan(parsePlanSpec(spec), shape, profile);
    expect(bits).toBeLessThanOrEqual(requested + 1e-9);
    expect(bits).toBeGreaterThan(requested - 0.15);
  });

  it.each(['mead2', 'mead2u', 'auto:2.5', 'auto-tq:4'])('%s gives more bits to more sensitive layers', spec => {
    const bits = bitsOf(choosePlan(parsePlanSpec(spec), shape, profile));
    for (let i = 1; i < bits.length; i++) {
      expect(bits[i].key).toBeGreaterThanOrEqual(bits[i - 1].key);
      expect(bits[i].key).toBeGreaterThanOrEqual(bits[i].value);
    }
    expect(bits[3].key).toBeGreaterThan(bits[0].value);
  });

  it('predicts less divergence with more bits', () => {
    const expected = [1.5, 2, 2.5, 3, 4, 5].map(
      bits => choosePlan(parsePlanSpec(`auto:${bits}`), shape, profile).predicted!,
    );
    for (let i = 1; i < expected.length; i++) expect(expected[i]).toBeLessThan(expected[i - 1]);
    expect(createPlan(parseSpec('mead2'), shape, profile).predicted).toBeCloseTo(expected[1], 6);
  });

  it('keeps the edge layers and the window in f16', () => {
    const plan = choosePlan(parsePlanSpec('auto:2+edge1+recent64'), shape, profile);
    expect(plan.codecs.map(({ keys }) => keys.spec === 'f16')).toEqual([true, false, false, true]);
    expect(plan.window).toEqual({ sink: 16, recent: 64, edge: 1 });
    expect(plan.spec).toBe('auto-mead:2+edge1+recent64');
    expect(choosePlan(parsePlanSpec(plan.spec), shape, profile).leaf.bytes).toBe(plan.leaf.bytes);
  });
});

describe('a memory budget', () => {
  const context = 2048;

  it.each([90_000, 100_000, 130_000, 160_000, 220_000])(
    'of %i bytes is not exceeded, and almost used up',
    contextMemory => {
      const plan = choosePlan(parsePlanSpec('auto'), shape, profile, { contextMemory, context });
      const bytes = planBytes(plan, context);
      expect(bytes).toBeLessThanOrEqual(contextMemory);
      const finest = (planBytes(choosePlan(parsePlanSpec('auto:4'), shape, profile), context) - fixedBytes(plan)) / 64;
      if (plan.bits < 5.9) expect(bytes).toBeGreaterThan(contextMemory - finest);
    },
  );

  it.each(['shadow', 'two-tier'] as const)('has room for the exact pages of a cache in %s mode', kvMode => {
    const exact = planBytes(createPlan(parseSpec('f16'), shape), context);
    const contextMemory = exact + 130_000;
    const plan = choosePlan(parsePlanSpec('auto'), shape, profile, { contextMemory, context, kvMode });
    const bytes = planBytes(withMode(plan, kvMode), context);
    expect(bytes).toBeLessThanOrEqual(contextMemory);
    expect(bytes).toBeGreaterThan(contextMemory - 60_000);
    const ask = () => choosePlan(parsePlanSpec('auto'), shape, profile, { contextMemory: exact / 2, context, kvMode });
    expect(ask).toThrow(CapacityError);
  });

  it('that is large enough gives f16', () => {
    expect(choosePlan(parsePlanSpec('auto'), shape, profile, { contextMemory: 1e7, context }).spec).toBe('f16');
  });

  it('that is too small is an error that says what would fit', () => {
    const ask = () => choosePlan(parsePlanSpec('auto'), shape, profile, { contextMemory: 5000, context: 100_000 });
    expect(ask).toThrow(CapacityError);
    expect(ask).toThrow(/do not fit into/);
  });

  it('needs auto and a context', () => {
    expect(() => choosePlan(parsePlanSpec('tq4'), shape, profile, { contextMemory: 1e6, context })).toThrow(InputError);
    expect(() => choosePlan(parsePlanSpec('auto'), shape, profile, { contextMemory: 1e6 })).toThrow(InputError);
  });
});

it.each(['f16', 'tq4', 'mead2', 'auto:2.25+recent40', 'auto-tq:3'])(
  '%s takes at most, and at its peak exactly, the bytes of planBytes',
  spec => {
    const plan = choosePlan(parsePlanSpec(spec), shape, profile);
    const device = createJsDevice();
    const { window, leaf, pageTokens } = plan;
    const { headDim, kvHeads } = shape;
    for (const tokens of [1, 127, 128, 129, 300, 1000]) {
      const pool = createPool(device);
      const sequence = createSequence({
        device,
        pool,
        shape: { headDim, kvHeads, pageTokens, sinks: window.sink },
        leaf,
        recent: window.recent,
        context: 4096,
      });
      sequence.plan(tokens);
      expect(pool.used).toBe(planBytes(plan, tokens));
      sequence.commit(tokens);
      expect(sequence.bytes).toBe(pool.used);
      expect(sequence.bytes).toBeLessThanOrEqual(planBytes(plan, tokens));
      sequence.dispose();
    }
  },
);

describe('without a profile', () => {
  it.each([
    ['auto', 'tq4'],
    ['auto:9', 'q8_0'],
    ['auto:4.5', 'tq4'],
    ['auto:4', 'tq3'],
    ['auto:0.5', 'tq1'],
  ])('%s is %s for all layers, with a notice', (spec, chosen) => {
    const wide = { ...shape, headDim: 64, ropeFrequencies: undefined };
    const plan = choosePlan(parsePlanSpec(spec), wide);
    expect(plan.spec).toBe(chosen);
    expect(plan.notice).toContain('kvasir calibrate');
    expect(plan.predicted).toBeUndefined();
  });

  it('a codec that needs one is an error', () => {
    expect(() => choosePlan(parsePlanSpec('auto-mead:2'), shape)).toThrow(/kvasir calibrate/);
    expect(() => choosePlan(parsePlanSpec('mead2'), shape)).toThrow(/kvasir calibrate/);
  });
});

it('parses its own syntax only', () => {
  for (const text of ['auto', 'auto:2', 'auto-tq:3.25', 'auto+recent128']) {
    expect(isAuto(parsePlanSpec(text)), text).toBe(true);
    expect(formatPlanSpec(parsePlanSpec(text))).toBe(text);
  }
  for (const text of ['tq4', 'mead2']) expect(isAuto(parsePlanSpec(text)), text).toBe(false);
  expect(() => parsePlanSpec('automatic')).toThrow(/is not a codec/);
  for (const wrong of ['auto:', 'auto:x', 'auto-kivi:2', 'auto:2+nothing3'])
    expect(() => choosePlan(parsePlanSpec(wrong), shape, profile), wrong).toThrow(SpecError);
});

it.each([
  ['auto:99', /"auto:99" asks for 99 bits per value. auto takes more than 0 and at most 16/],
  ['auto:0', /more than 0/],
  ['auto-mead:7', /auto-mead takes more than 0 and at most 6/],
  ['auto-tq:6', /auto-tq takes more than 0 and at most 5/],
])('%s is rejected with the allowed range', (spec, message) => {
  expect(() => choosePlan(parsePlanSpec(spec), shape)).toThrow(message);
});

it.each(['tq4', 'tq4+recent40'])('%s: maxTokensIn is the most tokens whose planBytes fit', spec => {
  const plan = createPlan(parseSpec(spec), shape);
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 4 * fixedBytes(plan) }), bytes => {
      const tokens = maxTokensIn(plan, bytes);
      if (tokens > 0) expect(planBytes(plan, tokens)).toBeLessThanOrEqual(bytes);
      expect(planBytes(plan, tokens + 1)).toBeGreaterThan(bytes);
    }),
  );
});
