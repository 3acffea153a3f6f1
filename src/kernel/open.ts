/** Choosing a device. Kernels are written for a model's shape, so a device is opened once for each model. */
import { UnsupportedError } from '../errors.ts';
import type { Device } from './device.ts';
import { createJsDevice } from './js/device.ts';
import { createWasmDevice } from './wasm/device.ts';
import { wasmSupport } from './wasm/support.ts';
import { findAdapter } from './webgpu/adapter.ts';
import { createWebGpuDevice } from './webgpu/device.ts';

export type DeviceName = 'auto' | 'js' | 'wasm' | 'webgpu';
export const deviceNames: readonly DeviceName[] = ['auto', 'js', 'wasm', 'webgpu'];

/** What kernels are written for. */
export interface DeviceShape {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
}

export interface DeviceOptions {
  threads?: number;
  /** As good as floats, and slower. */
  precise?: boolean;
}

export interface OpenedDevice {
  device: Device;
  /** Why it is this one, for people. */
  why: string;
  /** Whether to compile kernels before the first pass: a CPU that emulates a GPU would compile some that nobody needs. */
  warmUp: boolean;
}

interface Candidate {
  name: Exclude<DeviceName, 'auto'>;
  about: string;
  /** Why it cannot be had here, or not for this shape, if so. */
  missing(shape?: DeviceShape): Promise<string | undefined>;
  /** Why only those who ask for it should get it, if so. */
  unwanted?(): Promise<string | undefined>;
  open(shape: DeviceShape, options: DeviceOptions): Promise<Device>;
}

/** The fastest first. */
const candidates: readonly Candidate[] = [
  {
    name: 'webgpu',
    about: 'the GPU',
    async missing(shape) {
      const found = await findAdapter();
      if (typeof found === 'string') return found;
      return shape && shape.headDim % 2 !== 0 ? `heads of ${shape.headDim} dims are odd` : undefined;
    },
    async unwanted() {
      const found = await findAdapter();
      return typeof found !== 'string' && found.info.software ? `${found.info.name} runs on the CPU` : undefined;
    },
    open: (shape, options) => createWebGpuDevice({ ...shape, ...options }),
  },
  {
    name: 'wasm',
    about: 'SIMD and threads',
    async missing(shape) {
      if (!(await wasmSupport()).simd) return 'this WebAssembly has no SIMD';
      return shape && shape.headDim % 8 !== 0 ? `heads of ${shape.headDim} dims are no multiple of 8` : undefined;
    },
    open: (shape, options) => createWasmDevice({ ...shape, ...options }),
  },
  { name: 'js', about: 'plain loops, slow', missing: async () => undefined, open: async () => createJsDevice() },
];

export async function openDevice(
  name: DeviceName,
  shape: DeviceShape,
  options: DeviceOptions = {},
): Promise<OpenedDevice> {
  if (!deviceNames.includes(name))
    throw new UnsupportedError(`There is no device "${name}". Take one of: ${deviceNames.join(', ')}.`);
  const passed: string[] = [];
  for (const candidate of candidates) {
    if (name !== 'auto' && name !== candidate.name) continue;
    const missing = (await candidate.missing(shape)) ?? (name === 'auto' ? await candidate.unwanted?.() : undefined);
    if (missing === undefined) {
      const device = await candidate.open(shape, options);
      const about = `${candidate.name} (${candidate.about})`;
      const warmUp = (await candidate.unwanted?.()) === undefined;
      return { device, why: name === 'auto' ? [about, ...passed].join('; ') : `${about}, as asked`, warmUp };
    }
    passed.push(`no ${candidate.name}: ${missing}`);
  }
  throw new UnsupportedError(`The ${name} device is not to be had (${passed.join('; ')}). Take another, or auto.`);
}

export interface ListedDevice {
  name: string;
  about: string;
  /** Why it cannot be had. */
  missing?: string;
  /** Why `auto` passes over it. */
  unwanted?: string;
}

/** Every device, the fastest first. */
export async function listDevices(): Promise<ListedDevice[]> {
  return Promise.all(
    candidates.map(async ({ name, about, missing, unwanted }) => {
      return { name, about, missing: await missing(), unwanted: await unwanted?.() };
    }),
  );
}
