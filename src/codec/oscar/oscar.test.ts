import { describe, expect, it } from 'vitest';
import { affineCode, affineStep } from '../affine.ts';
import { codeBits } from '../codec.ts';
import { createCodec } from '../kv.ts';
import { createRandom, normals } from '../parts/random.ts';
import { measureLoss } from '../validate.ts';

describe('the worked example: one channel over four tokens, the first a sink', () => {
  const channel = [0.05, 8.1, 7.9, 8.3];
  const step = (values: number[]) => affineStep(Math.min(...values), Math.max(...values), 2);

  it('range 8.25, step 2.75 with the sink', () => {
    expect(Math.max(...channel) - Math.min(...channel)).toBeCloseTo(8.25, 10);
    expect(step(channel)).toBeCloseTo(2.75, 10);
    // The other three tokens share one code.
    expect(channel.map(x => affineCode(x, 0.05, step(channel), 2))).toEqual([0, 3, 3, 3]);
  });

  it('step .133 without it', () => {
    expect(step(channel.slice(1))).toBeCloseTo(0.133, 3);
  });
});

/** Keys with rare large values, in tokens of very different norms (some are sinks). */
function unevenKeys(d: number): Float32Array {
  const random = createRandom(3);
  const norms = Array.from({ length: 512 }, (_, t) => (t % 32 === 0 ? 0.01 : Math.exp(0.7 * random.normal())));
  return normals(random, 512 * d).map((x, i) => (x + x ** 3) * norms[Math.floor(i / d)]);
}

it.each([64, 128])('rotation with scaling has a lower error than either alone, %i dims', d => {
  const keys = unevenKeys(d);
  // Cosine similarity weights every key the same, whatever its norm.
  const loss = (spec: string) => 1 - measureLoss(createCodec(spec, { headDim: d }).keys, keys).cosine;
  expect(loss('oscar2g32-scale')).toBeGreaterThan(1.2 * loss('oscar2g32'));
  expect(loss('oscar2g32-rot')).toBeGreaterThan(1.2 * loss('oscar2g32'));
  expect(loss('kivi2g32')).toBeGreaterThan(1.2 * loss('oscar2g32'));
});

it('values have no norm; keys have one f16 per token and head, or one per token across heads', () => {
  const { keys, values } = createCodec('oscar2g32', { headDim: 64, kvHeads: 4 });
  expect([codeBits(keys), codeBits(values)]).toEqual([3.25, 3]);
  expect(codeBits(createCodec('oscar2g32-xh', { headDim: 64, kvHeads: 4 }).keys)).toBe(3.0625);
});
