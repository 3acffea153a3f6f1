import { describe, expect, it } from 'vitest';
import { codeBits } from '../codec/codec.ts';
import { placeholderLearned } from '../codec/kv.ts';
import { parseSpec } from '../codec/spec.ts';
import { createPlan } from './plan.ts';
import type { Profile } from './profile.ts';

const shape = { layers: 3, kvHeads: 2, headDim: 32, ropeFrequencies: Float64Array.of(1, 0.1) };

function makeProfile(learned: Profile['learned'], samples = 512): Profile {
  const sources = { model: '', tokens: 512, context: 512, samples, seed: 0, text: '', sources: [], codecs: [] };
  return {
    fingerprint: '0'.repeat(64),
    hash: '1'.repeat(64),
    shape: { ...shape, ropeFrequencies: [...shape.ropeFrequencies] },
    provenance: { ...sources, version: '0' },
    learned,
    sensitivities: {},
    measurements: [],
  };
}

/** Energy shares that reach 95 % with this many of 16 pairs. */
const sharesOf = (pairs: number) => Float32Array.from({ length: 16 }, (_, i) => (i + 1 < pairs ? 0.9 : 1));

describe('tri-i4', () => {
  it('has as many pairs in each layer as the profile measured there', () => {
    const learned = [4, 9, 16].map(pairs => ({ key: { 'tri.shares': sharesOf(pairs) }, value: {} }));
    const plan = createPlan(parseSpec('tri-i4/tq4'), shape, makeProfile(learned));
    const fixed = [4, 9, 16].map(pairs => createPlan(parseSpec(`tri${pairs}i4/tq4`), shape));
    expect(plan.codecs.map(({ keys }) => codeBits(keys))).toEqual(fixed.map(({ codecs }) => codeBits(codecs[0].keys)));
    expect(plan.bits).toBeCloseTo(
      fixed.reduce((sum, { bits }) => sum + bits / 3, 0),
      9,
    );
    expect(plan.leaf.bytes).toBe(fixed.reduce((sum, { leaf }) => sum + leaf.bytes / 3, 0));
    expect(plan.notice).toBeUndefined();
  });

  it('without a profile has one codec for all layers, and a notice', () => {
    const { codecs, notice } = createPlan(parseSpec('tri-i4/tq4'), shape);
    expect(new Set(codecs).size).toBe(1);
    expect(notice).toMatch(/tri-i4 keeps 10 RoPE pairs in every layer.*kvasir calibrate/);
  });
});

describe('vec', () => {
  const { key = {}, value = {} } = placeholderLearned(parseSpec('vec-d4b8-own'), shape);
  const noticeOf = (samples: number) =>
    createPlan(parseSpec('vec-d4b8-own'), shape, makeProfile(Array(3).fill({ key, value }), samples)).notice;

  it('has a notice if its codebooks were learned from few samples', () => {
    expect(noticeOf(32 * 256)).toBeUndefined();
    expect(noticeOf(32 * 256 - 1)).toMatch(
      /learned from 8,191 samples per layer.*--codecs vec-d4b8-own --samples 8192/,
    );
  });
});
