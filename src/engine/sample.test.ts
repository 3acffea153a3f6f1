import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InputError } from '../util/errors.ts';
import { createSampler, type SampleOptions } from './sample.ts';

const logits = (...values: number[]) => Float32Array.from(values);

/** How often each token comes out of many draws. */
function frequencies(values: Float32Array, options: SampleOptions, draws = 10_000): number[] {
  const sampler = createSampler({ seed: 1, ...options });
  const counts = new Array<number>(values.length).fill(0);
  for (let i = 0; i < draws; i++) counts[sampler.sample(values).id]!++;
  return counts.map(n => n / draws);
}

/** The expected probabilities, by full sorts and plain sums. */
function expected(values: Float32Array, { temperature = 0.7, topK = 0, topP = 1, minP = 0 }: SampleOptions): number[] {
  const max = Math.max(...values);
  const weights = Array.from(values, v => Math.exp((v - max) / temperature)).map(w => (w >= minP ? w : 0));
  const order = Array.from(weights.keys()).sort((a, b) => values[b]! - values[a]! || a - b);
  for (const id of topK > 0 ? order.slice(topK) : []) weights[id] = 0;
  const whole = weights.reduce((a, b) => a + b, 0);
  let sum = 0;
  for (const id of order) {
    if (sum >= topP * whole) weights[id] = 0;
    sum += weights[id]!;
  }
  const kept = weights.reduce((a, b) => a + b, 0);
  return weights.map(w => w / kept);
}

const VALUES = logits(1, 3, 2.5, -1, 3, 0, 2, -Infinity);

describe('sampling', () => {
  it('temperature 0 takes the largest logit; the lower id wins ties', () => {
    const sampler = createSampler({ temperature: 0 });
    expect(sampler.sample(VALUES).id).toBe(1);
    expect(createSampler({ topK: 1 }).sample(VALUES).id).toBe(1);
  });

  it.each<SampleOptions>([
    {},
    { temperature: 0.5 },
    { temperature: 3 },
    { topK: 3 },
    { topP: 0.7 },
    { minP: 0.3 },
    { topK: 4, topP: 0.8 },
    { topK: 5, topP: 0.9, minP: 0.2, temperature: 1.5 },
    { topP: 0.0001 },
    { topK: 100 },
  ])('draws each token with its expected frequency: %j', options => {
    const want = expected(VALUES, options);
    frequencies(VALUES, options).forEach((got, id) => {
      expect(Math.abs(got - want[id]!)).toBeLessThan(0.02);
      if (want[id] === 0) expect(got).toBe(0);
    });
  });

  it('top-p keeps enough tokens of a flat distribution', () => {
    const got = frequencies(new Float32Array(1000), { topP: 0.5 }, 1000);
    expect(got.slice(501).every(p => p === 0)).toBe(true);
    expect(got.slice(400, 500).some(p => p > 0)).toBe(true);
  });

  it('gives the same tokens for the same seed', () => {
    const run = (seed: number) => {
      const sampler = createSampler({ seed });
      return Array.from({ length: 50 }, () => sampler.sample(VALUES).id).join();
    };
    expect(run(5)).toBe(run(5));
    expect(run(5)).not.toBe(run(6));
    const { seed } = createSampler();
    expect(run(seed)).toBe(run(seed));
  });

  it('draws only tokens that the options keep, and leaves the logits unchanged', () => {
    const options = fc.record({
      temperature: fc.constantFrom(0, 0.1, 1, 5),
      topK: fc.nat(12),
      topP: fc.constantFrom(0.01, 0.5, 0.9, 1),
      minP: fc.constantFrom(0, 0.05, 0.5, 1),
      frequencyPenalty: fc.constantFrom(0, 0.5),
      repetitionPenalty: fc.constantFrom(1, 1.3),
      seed: fc.nat(),
    });
    const value = fc.oneof(fc.float({ min: -30, max: 30, noNaN: true }), fc.constant(-Infinity));
    fc.assert(
      fc.property(fc.array(value, { minLength: 1, maxLength: 40 }), options, (list, options) => {
        const values = Float32Array.from([...list, 1]);
        const before = values.slice();
        const plain = options.frequencyPenalty === 0 && options.repetitionPenalty === 1 && options.temperature > 0;
        const allowed = plain ? expected(values, options) : undefined;
        const sampler = createSampler(options, [0]);
        for (let i = 0; i < 5; i++) {
          const { id } = sampler.sample(values);
          expect(values[id]).not.toBe(-Infinity);
          if (allowed) expect(allowed[id]).toBeGreaterThan(0);
          expect(values).toEqual(before);
        }
      }),
    );
  });
});

describe('penalties', () => {
  it('repetition includes the prompt, within the window', () => {
    const values = logits(2, 1.9, -1);
    expect(createSampler({ temperature: 0, repetitionPenalty: 1.5 }, [0]).sample(values).id).toBe(1);
    const short = createSampler({ temperature: 0, repetitionPenalty: 1.5, repetitionWindow: 2 }, [0, 2, 2]);
    expect(short.sample(values).id).toBe(0);
  });

  it('repetition also lowers negative logits', () => {
    expect(createSampler({ temperature: 0, repetitionPenalty: 2 }, [0]).sample(logits(-1, -1.5)).id).toBe(1);
  });

  it('frequency grows with every use, presence does not, and neither includes the prompt', () => {
    const take = (options: SampleOptions, n: number) => {
      const sampler = createSampler({ temperature: 0, ...options }, [0, 0, 0]);
      return Array.from({ length: n }, () => sampler.sample(logits(1, 0)).id);
    };
    expect(take({ frequencyPenalty: 0.4 }, 5)).toEqual([0, 0, 0, 1, 0]);
    expect(take({ presencePenalty: 0.4 }, 5)).toEqual([0, 0, 0, 0, 0]);
    expect(take({ presencePenalty: 1.5 }, 3)).toEqual([0, 1, 0]);
  });

  it('reject a prompt with ids outside the vocabulary', () => {
    expect(() => createSampler({ repetitionPenalty: 2 }, [7]).sample(logits(1, 2))).toThrow(InputError);
  });
});

describe('log probabilities', () => {
  it('are those before penalties, of the sampled token and the most likely ones', () => {
    const sampler = createSampler({ temperature: 0, logprobs: 2, presencePenalty: 1 });
    const values = logits(Math.log(0.2), Math.log(0.5), Math.log(0.3));
    sampler.sample(values);
    const { id, logprob, top } = sampler.sample(values);
    expect(id).toBe(2);
    expect(logprob).toBeCloseTo(Math.log(0.3), 5);
    expect(top!.map(t => t.id)).toEqual([1, 2]);
    expect(top![0]!.logprob).toBeCloseTo(Math.log(0.5), 5);
  });

  it('are absent without the option', () => {
    expect(createSampler({ temperature: 0 }).sample(logits(1, 2))).toEqual({ id: 1 });
    expect(createSampler({ temperature: 0, logprobs: 0 }).sample(logits(1, 2)).top).toEqual([]);
  });
});

describe('invalid input', () => {
  it.each([
    ['NaN', logits(1, Number.NaN)],
    ['Infinity', logits(1, Infinity)],
    ['nothing', logits()],
    ['only -Infinity', logits(-Infinity, -Infinity)],
  ])('rejects logits with %s', (_, values) => {
    expect(() => createSampler().sample(values)).toThrow(InputError);
  });

  it.each<SampleOptions>([
    { temperature: -1 },
    { temperature: Number.NaN },
    { topK: 1.5 },
    { topP: 0 },
    { topP: 1.1 },
    { minP: 2 },
    { repetitionPenalty: 0 },
    { repetitionWindow: -1 },
    { frequencyPenalty: Infinity },
    { seed: 0.5 },
    { logprobs: -1 },
  ])('rejects %j', options => {
    expect(() => createSampler(options)).toThrow(InputError);
  });
});
