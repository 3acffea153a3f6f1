import { describe, expect, it } from 'vitest';
import { createCodec, learn, needsProfile, placeholderLearned } from '../codec/kv.ts';
import { gaussianSamples } from '../codec/learned.ts';
import { parseSpec } from '../codec/spec.ts';
import { zoo } from '../codec/zoo.ts';
import { InputError } from '../util/errors.ts';
import { memoryReport, whatFits } from './memory.ts';
import { createPlan, planBytes } from './plan.ts';

const GIB = 2 ** 30;

describe('published sizes of the TurboQuant cache', () => {
  const block = (spec: string) => {
    const { keys, values } = createCodec(spec, { headDim: 128, kvHeads: 8, pageTokens: 16 });
    return keys.pageBytes + values.pageBytes;
  };

  it('17,408 bytes per block of 16 tokens, 32,768 in fp8: 1.88 times less', () => {
    expect(block('tq4-raw-n32')).toBe(17_408);
    expect(block('fp8')).toBe(32_768);
    expect(block('fp8') / block('tq4-raw-n32')).toBeCloseTo(1.88, 2);
  });

  it('548,275 tokens in 20 GiB with 36 layers, 291,271 in fp8', () => {
    const tokens = (spec: string) =>
      whatFits(memoryReport(spec, { layers: 36, kvHeads: 8, headDim: 128, pageTokens: 16 }, 4096), 20 * GIB).tokens;
    expect(tokens('tq4-raw-n32')).toBe(548_275);
    expect(tokens('fp8')).toBe(291_271);
  });
});

describe('a memory report', () => {
  const shape = { layers: 30, kvHeads: 3, headDim: 64 };

  it('counts pages, f16 windows and padding once each', () => {
    const report = memoryReport('tq4+sink4+recent128', shape, 2000);
    // 34 bytes per vector, and a mean of 64 f16 per head of the keys of a page.
    // 2000 - 128 tokens hold 14 whole pages; the other 208 and the 4 sinks stay f16 in a window of 256.
    const f16Token = 30 * 2 * 2 * 3 * 64;
    expect(report.pageBytes).toBe(14 * 30 * 3 * (128 * 2 * 34 + 128));
    expect(report.windowBytes).toBe((208 + 4) * f16Token);
    expect(report.paddingBytes).toBe((256 - 208) * f16Token);
    expect(report.totalBytes).toBe(report.pageBytes + report.windowBytes + report.paddingBytes);
    expect(report.f16Bytes).toBe(2000 * f16Token);
    expect(report.codeBits).toBe(4.3125);
  });

  it.each([1, 128, 129, 256, 257, 1000])('equals planBytes at %i tokens', context => {
    for (const spec of ['tq4', 'tq3+sink0', 'kivi2g32+recent128+edge1', 'f16'])
      expect(memoryReport(spec, shape, context).totalBytes).toBe(
        planBytes(createPlan(parseSpec(spec), shape), context),
      );
    const { windowBytes, paddingBytes } = memoryReport('tq4', shape, context);
    expect(paddingBytes).toBeGreaterThanOrEqual(0);
    expect(windowBytes).toBeGreaterThan(0);
  });

  it('keeps the first and last KV layers in f16', () => {
    const plain = memoryReport('tq4', shape, 4096);
    const edged = memoryReport('tq4+edge2', shape, 4096);
    expect(edged.bytesPerToken).toBe((26 * plain.bytesPerToken) / 30 + 4 * 2 * 2 * 3 * 64);
    expect(memoryReport('tq4+edge99', shape, 4096).bytesPerToken).toBe(30 * 2 * 2 * 3 * 64);
  });

  it('equals the bytes that encode produces', () => {
    const tokens = 1000;
    const codec = createCodec('kivi2g32', { headDim: 64, kvHeads: 3 });
    const x = new Float32Array(tokens * 3 * 64).fill(1);
    const bytes = codec.encode(x, x).filter(segment => segment.keys === codec.keys);
    const encodedBytes = bytes.reduce((sum, { keyPage, valuePage }) => sum + keyPage.length + valuePage.length, 0);
    expect(encodedBytes).toBe(memoryReport('kivi2g32', { ...shape, layers: 1 }, tokens).pageBytes);
  });

  it.each(zoo.filter(spec => needsProfile(parseSpec(spec))))(
    'counts %s without training: sizes do not depend on the data',
    spec => {
      const small = { headDim: 32, kvHeads: 2 };
      const samples = gaussianSamples(small, 64);
      const taught = createCodec(spec, small, learn(spec, small, { key: samples, value: samples }));
      const counted = createCodec(spec, small, placeholderLearned(parseSpec(spec), small));
      expect([counted.keys.pageBytes, counted.values.pageBytes]).toEqual([
        taught.keys.pageBytes,
        taught.values.pageBytes,
      ]);
    },
  );

  it('shows no gain over f16 while no page is sealed', () => {
    expect(memoryReport('tq2', shape, 100).ratio).toBeLessThanOrEqual(1);
  });

  it('rejects invalid counts', () => {
    expect(() => memoryReport('tq4', { ...shape, layers: 0 }, 10)).toThrow(InputError);
    expect(() => memoryReport('tq4', shape, 1.5)).toThrow(InputError);
  });
});
