/** wasm devices that the tests of a file share. */
import { afterAll } from 'vitest';
import type { Device } from '../../src/kernel/device.ts';
import { createWasmDevice, type WasmOptions } from '../../src/kernel/wasm/device.ts';

/** Opens one device per set of options: its threads and modules are shared by all tests of the file that calls this. */
export function shareWasm(): (options?: Partial<WasmOptions>) => Promise<Device> {
  const devices = new Map<string, Promise<Device>>();
  afterAll(async () => {
    for (const device of devices.values()) await (await device).dispose();
  });
  return (options = {}) => {
    const key = JSON.stringify(options);
    const shape = { headDim: 64, heads: 6, kvHeads: 2, pageTokens: 128, threads: 2 };
    const device = devices.get(key) ?? createWasmDevice({ ...shape, ...options });
    devices.set(key, device);
    return device;
  };
}
