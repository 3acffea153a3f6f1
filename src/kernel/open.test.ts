import { expect, it } from 'vitest';
import { UnsupportedError } from '../util/errors.ts';
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
