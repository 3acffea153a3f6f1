/** Choosing a device. Kernels are written for a model's shape, so a device is opened once for each model. */
import { UnsupportedError } from '../errors.ts';
import type { Device } from './device.ts';
import { createJsDevice } from './js/device.ts';

export type DeviceName = 'auto' | 'js' | 'wasm';
export const deviceNames: readonly DeviceName[] = ['auto', 'js', 'wasm'];

/** What kernels are written for. */
export interface DeviceShape {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
}

export interface DeviceOptions {
  threads?: number;
}

export interface OpenedDevice {
  device: Device;
  /** Why it is this one, for people. */
  why: string;
}

interface Candidate {
  name: Exclude<DeviceName, 'auto'>;
  about: string;
  /** Why it cannot be had here, if so. */
  missing(): string | undefined;
  open(shape: DeviceShape, options: DeviceOptions): Promise<Device>;
}

/** The fastest first. */
const candidates: readonly Candidate[] = [
  {
    name: 'wasm',
    about: 'SIMD and threads',
    missing: () => 'this version has no wasm kernels yet',
    open: async () => {
      throw new UnsupportedError('This version has no wasm kernels yet.');
    },
  },
  { name: 'js', about: 'plain loops, slow', missing: () => undefined, open: async () => createJsDevice() },
];

export async function openDevice(
  name: DeviceName,
  shape: DeviceShape,
  options: DeviceOptions = {},
): Promise<OpenedDevice> {
  if (name === 'auto') {
    const passed = candidates.filter(({ missing }) => missing() !== undefined);
    const chosen = candidates.find(({ missing }) => missing() === undefined)!;
    const reasons = passed.map(({ name, missing }) => `no ${name}: ${missing()}`);
    const why = [`${chosen.name} (${chosen.about})`, ...reasons].join('; ');
    return { device: await chosen.open(shape, options), why };
  }
  const chosen = candidates.find(candidate => candidate.name === name);
  if (!chosen) throw new UnsupportedError(`There is no device "${name}". Take one of: ${deviceNames.join(', ')}.`);
  const missing = chosen.missing();
  if (missing !== undefined)
    throw new UnsupportedError(`The ${name} device is not to be had: ${missing}. Take another, or auto.`);
  return { device: await chosen.open(shape, options), why: `${name} (${chosen.about}), as asked` };
}

/** Every device, the fastest first, and why it cannot be had where it cannot. */
export function listDevices(): { name: string; about: string; missing?: string }[] {
  return candidates.map(({ name, about, missing }) => ({ name, about, missing: missing() }));
}
