/** The benchmarks of the GPU are run by hand on real ones: here each runs once, small, so that it does not rot. */
import { afterEach, expect, it, vi } from 'vitest';
import { benchWebGpuAttention } from '../../bench/webgpu-attention.ts';
import { benchWebGpuE2e } from '../../bench/webgpu-e2e.ts';

afterEach(() => {
  vi.restoreAllMocks();
});

/** What a benchmark prints with --json. */
async function printed(bench: () => Promise<void>): Promise<unknown> {
  vi.spyOn(console, 'error').mockImplementation(() => {});
  const log = vi.spyOn(console, 'log').mockImplementation(() => {});
  await bench();
  return JSON.parse(log.mock.calls.flat().join('\n'));
}

it.each(['tiny', 'tiny-moe'])('a whole model of the shape %s, decoding and with a prompt', async shape => {
  const options = {
    shape,
    depths: '256',
    batch: '',
    prompt: '64',
    chunk: '64',
    breakdown: false,
    json: true,
  };
  const found = await printed(() => benchWebGpuE2e({ ...options, kv: 'mead2' }));
  expect(found).toMatchObject({ shape, results: { length: 2 } });
  for (const { ms } of (found as { results: { ms: number }[] }).results) expect(ms).toBeGreaterThan(0);
});

it('attention alone', async () => {
  const options = { work: '2x300', heads: '4/2/128', split: '4', subgroups: true, json: true };
  const found = await printed(() => benchWebGpuAttention({ ...options, kv: 'tq4u' }));
  expect(found).toMatchObject({ rows: [{ kv: 'tq4u', work: '2x300' }] });
});
