import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { DeviceError, UnsupportedError } from '../util/errors.ts';
import { listDevices, openDevice } from './open.ts';

const shape = { headDim: 64, heads: 4, kvHeads: 2, pageTokens: 128 };

it('opens the requested device and reports why', async () => {
  const { device, why } = await openDevice('js', shape);
  expect([device.name, device.allocatedBytes, why]).toEqual(['js', 0, 'js (plain loops, slow), as requested']);
});

it('auto opens the fastest available device and reports why faster ones were skipped', async () => {
  const { device, why } = await openDevice('auto', shape);
  const devices = await listDevices();
  expect(device.name).toBe(devices.find(({ missing, unwanted }) => (missing ?? unwanted) === undefined)?.name);
  for (const { name, missing, unwanted } of devices.slice(
    0,
    devices.findIndex(({ name }) => name === device.name),
  ))
    expect(why).toContain(`no ${name}: ${missing ?? unwanted}`);
  await device.dispose();
});

it('never opens another device than the requested one', async () => {
  for (const { name, missing } of await listDevices())
    if (missing !== undefined) await expect(openDevice(name as 'wasm', shape)).rejects.toThrow(missing);
  await expect(openDevice('cuda' as 'js', shape)).rejects.toThrow(UnsupportedError);
});

it('auto skips a device that does not support the shape and reports it', async () => {
  const odd = { ...shape, headDim: 20 };
  const { device, why } = await openDevice('auto', odd);
  expect(device.name).toBe('js');
  expect(why).toMatch(/^js \(plain loops, slow\); .*no wasm: the head dimension 20 is not a multiple of 8$/);
  await expect(openDevice('wasm', odd)).rejects.toThrow(/not a multiple of 8/);
});

describe('a GPU that is there but fails', () => {
  const state = (globalThis as unknown as { kvasirGpu: { gpu?: Promise<unknown> } }).kvasirGpu;
  let before: Promise<unknown> | undefined;
  beforeEach(() => {
    before = state.gpu;
  });
  afterEach(() => {
    state.gpu = before;
  });

  const limits = {
    ...{ maxStorageBufferBindingSize: 2 ** 30, maxBufferSize: 2 ** 30, maxComputeWorkgroupStorageSize: 32768 },
    ...{ maxComputeInvocationsPerWorkgroup: 256, maxComputeWorkgroupSizeX: 256, maxStorageBuffersPerShaderStage: 10 },
  };
  const info = { vendor: 'nvidia', architecture: 'x', device: 'H', description: 'Fake GPU' };
  const use = (requestDevice: () => Promise<unknown>) => {
    const adapter = { info, limits, features: new Set(), requestDevice };
    state.gpu = Promise.resolve({ requestAdapter: async () => adapter, wgslLanguageFeatures: new Set() });
  };
  const refuse = async () => {
    throw new DOMException('VK_ERROR_OUT_OF_DEVICE_MEMORY', 'OperationError');
  };

  it('auto takes the next device, and says why', async () => {
    use(refuse);
    const { device, why, notice } = await openDevice('auto', shape);
    expect(device.name).toBe('wasm');
    expect(why).toMatch(/no webgpu: .*Fake GPU.* cannot be opened \(VK_ERROR_OUT_OF_DEVICE_MEMORY\)\. .*[^.]$/);
    expect(notice).toMatch(/^webgpu is not used: .*Fake GPU.* cannot be opened .* update its driver\.$/);
    await device.dispose();
  });

  it('is a DeviceError if it was requested', async () => {
    use(refuse);
    await expect(openDevice('webgpu', shape)).rejects.toThrow(DeviceError);
    await expect(openDevice('webgpu', shape)).rejects.toThrow(/cannot be opened \(VK_ERROR_OUT_OF_DEVICE_MEMORY\)/);
  });

  it('is missing if WebGPU fails to look for one', async () => {
    state.gpu = Promise.resolve({ requestAdapter: refuse });
    await expect(openDevice('webgpu', shape)).rejects.toThrow(UnsupportedError);
    const { device, why } = await openDevice('auto', shape);
    expect(why).toContain('no webgpu: WebGPU cannot look for a GPU (VK_ERROR_OUT_OF_DEVICE_MEMORY)');
    await device.dispose();
  });

  it('is destroyed if it cannot be set up', async () => {
    const destroy = vi.fn();
    use(async () => ({ destroy, lost: new Promise(() => {}) }));
    await expect(openDevice('webgpu', shape)).rejects.toThrow();
    expect(destroy).toHaveBeenCalledOnce();
  });
});
