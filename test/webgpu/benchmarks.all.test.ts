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

it.each([
  { shape: 'tiny', depths: '256', prompt: '64' },
  { shape: 'tiny-moe', depths: '', prompt: '32' },
])('a whole model of the shape $shape', async ({ shape, depths, prompt }) => {
  const options = {
    shape,
    depths,
    batch: '',
    prompt,
    chunk: '64',
    breakdown: false,
    json: true,
  };
  const found = await printed(() => benchWebGpuE2e({ ...options, kv: 'mead2' }));
  expect(found).toMatchObject({ shape, results: { length: depths ? 2 : 1 } });
  for (const { ms } of (found as { results: { ms: number }[] }).results) expect(ms).toBeGreaterThan(0);
});

it('attention alone', async () => {
  const options = { work: '2x300', heads: '4/2/128', split: '4', subgroups: true, json: true };
  const found = await printed(() => benchWebGpuAttention({ ...options, kv: 'tq4u' }));
  expect(found).toMatchObject({ rows: [{ kv: 'tq4u', work: '2x300' }] });
});
