import { describe, expect, it } from 'vitest';
import { toF16 } from '../../kernel/float.ts';
import { createCodec } from '../kv.ts';

/** Encodes one vector of 32 dims and returns the bytes of the first block. */
function firstBlock(spec: string, x: number[], bytes: number): number[] {
  const { keys } = createCodec(spec, { headDim: 32, pageTokens: 16 });
  const page = new Uint8Array(keys.pageBytes);
  keys.encode(Float32Array.from(x), 1, page, 0);
  return [...page.subarray(0, bytes)];
}

const f16Bytes = (x: number) => [toF16(x) & 255, toF16(x) >> 8];
const ramp = Array.from({ length: 32 }, (_, i) => i - 16);

describe('with -raw the bytes are those of llama.cpp', () => {
  it('q8_0: f16 scale max / 127, then int8, halves rounded away from zero', () => {
    const codes = ramp.map(x => Math.sign(x) * Math.floor(Math.abs(x / (16 / 127)) + 0.5)).map(q => q & 255);
    expect(firstBlock('q8_0-raw', ramp, 34)).toEqual([...f16Bytes(16 / 127), ...codes]);
  });

  it('q4_0: f16 scale of the largest value / -8, halves of the block in low and high nibbles', () => {
    // The largest magnitude is -16: scale 2, code floor(x / 2 + 8.5).
    const code = (x: number) => Math.min(15, Math.floor(x / 2 + 8.5));
    const bytes = Array.from({ length: 16 }, (_, i) => code(ramp[i]) | (code(ramp[i + 16]) << 4));
    expect(firstBlock('q4_0-raw', ramp, 18)).toEqual([...f16Bytes(2), ...bytes]);
  });

  it('a zero block has scale 0 (and codes 8 in q4_0)', () => {
    expect(firstBlock('q8_0-raw', Array(32).fill(0), 34)).toEqual(Array(34).fill(0));
    expect(firstBlock('q4_0-raw', Array(32).fill(0), 18).slice(2)).toEqual(Array(16).fill(0x88));
  });

  it('q4_0h rotates keys in blocks of the largest power of two that divides headDim, values in blocks of 64', () => {
    const { keys, values } = createCodec('q4_0h', { headDim: 128 });
    const query = new Float32Array(128);
    query[100] = 1;
    expect(keys.transformQuery(query, 0, 0).vector.every(x => Math.abs(Math.abs(x) - 1 / Math.sqrt(128)) < 1e-6)).toBe(
      true,
    );
    const out = new Float32Array(128);
    const sum = new Float32Array(128);
    sum[0] = 8;
    values.transformOutput(sum, 1, 0, out);
    expect([...out]).toEqual([...Array(64).fill(1), ...Array(64).fill(0)]);
  });
});
