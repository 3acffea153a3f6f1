import { expect, it } from 'vitest';
import { listDevices, openDevice } from '../kernel/open.ts';
import { formatDevice } from './stats.ts';

it('nothing is said of a GPU that nobody has asked for, whatever the reason is why there is none', async () => {
  const about = 'wasm (SIMD); 2 threads';
  for (const reason of [
    'the optional package webgpu is not installed: npm install webgpu',
    'the adapter runs on the CPU',
  ])
    expect(formatDevice(`${about}; no webgpu: ${reason}`)).toBe(about);
  expect(formatDevice('js (slow); no webgpu: none; no wasm: no SIMD')).toBe('js (slow); no wasm: no SIMD');
  const { device, why } = await openDevice('auto', { headDim: 64, heads: 4, kvHeads: 2, pageTokens: 128 });
  const lacksGpu = (await listDevices()).some(
    ({ name, missing, unwanted }) => name === 'webgpu' && (missing ?? unwanted) !== undefined,
  );
  expect(why.includes('no webgpu: ')).toBe(lacksGpu);
  if (lacksGpu) expect(formatDevice(why)).not.toContain('webgpu');
  await device.dispose();
});
