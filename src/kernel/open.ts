/** Device selection. Kernels are generated for a model's shape, so each model opens its own device. */

import { platform } from '../platform/node.ts';
import { CapacityError, KvasirError, UnsupportedError } from '../util/errors.ts';
import type { Device } from './device.ts';
import { wasmSupport } from './wasm/support.ts';
import { findAdapter } from './webgpu/adapter.ts';

export type DeviceName = 'auto' | 'js' | 'wasm' | 'webgpu';
const deviceNames: readonly DeviceName[] = ['auto', 'js', 'wasm', 'webgpu'];

/** The shape that kernels are generated for. */
export interface DeviceShape {
  headDim: number;
  heads: number;
  kvHeads: number;
  pageTokens: number;
}

export interface DeviceOptions {
  threads?: number;
  /** Float arithmetic instead of int8: slower. */
  precise?: boolean;
  /** On webgpu: whether a decoded row has the same bits alone and in any batch. Default: true. */
  batchInvariant?: boolean;
}

/** Says what is wrong with the results of a device; undefined: nothing. */
export type DeviceTest = (device: Device) => Promise<string | undefined>;

export interface OpenedDevice {
  device: Device;
  /** Why this device was selected, for display. */
  why: string;
  /** A faster device is there, but cannot be opened or computes wrong results. */
  notice?: string;
  /** Whether to compile all kernels before the first pass. False on a software GPU, where compiling unused ones is slow. */
  warmUp: boolean;
}

interface Candidate {
  name: Exclude<DeviceName, 'auto'>;
  about: string;
  /** The reason it is not available here or for this shape; undefined if it is available. */
  missing(shape?: DeviceShape): Promise<string | undefined>;
  /** The reason `auto` skips it; undefined if `auto` may select it. */
  unwanted?(): Promise<string | undefined>;
  /** The name of what runs it, if its results depend on drivers, so that they are tested before use. */
  tested?(): Promise<string | undefined>;
  /** What it lacks here, and why. */
  limitation?(): string | undefined;
  open(shape: DeviceShape, options: DeviceOptions): Promise<Device>;
}

/** Fastest first. Their code is loaded on use: a page downloads only the device that it takes. */
const candidates: readonly Candidate[] = [
  {
    name: 'webgpu',
    about: 'the GPU',
    async missing(shape) {
      const found = await findAdapter();
      if (typeof found === 'string') return found;
      return shape && shape.headDim % 2 !== 0 ? `the head dimension ${shape.headDim} is odd` : undefined;
    },
    async unwanted() {
      const found = await findAdapter();
      return typeof found !== 'string' && found.info.software ? `${found.info.name} runs on the CPU` : undefined;
    },
    // Software adapters take too long to compile the kernels twice, and `auto` does not select them.
    async tested() {
      const found = await findAdapter();
      return typeof found === 'string' || found.info.software ? undefined : found.info.name;
    },
    open: async (shape, options) => (await import('./webgpu/device.ts')).createWebGpuDevice({ ...shape, ...options }),
  },
  {
    name: 'wasm',
    about: 'SIMD and threads',
    async missing(shape) {
      if (!wasmSupport().simd) return 'this WebAssembly engine has no SIMD';
      return shape && shape.headDim % 8 !== 0
        ? `the head dimension ${shape.headDim} is not a multiple of 8`
        : undefined;
    },
    limitation: () =>
      platform.canShareMemory
        ? undefined
        : 'one thread: the page is not cross-origin isolated (serve it with the headers COOP and COEP)',
    open: async (shape, options) => (await import('./wasm/device.ts')).createWasmDevice({ ...shape, ...options }),
  },
  {
    name: 'js',
    about: 'plain loops, slow',
    missing: async () => undefined,
    open: async () => (await import('./js/device.ts')).createJsDevice(),
  },
];

export async function openDevice(
  name: DeviceName,
  shape: DeviceShape,
  options: DeviceOptions = {},
  test?: DeviceTest,
): Promise<OpenedDevice> {
  if (!deviceNames.includes(name))
    throw new UnsupportedError(`Unknown device "${name}". Use one of: ${deviceNames.join(', ')}.`);
  const skipped: string[] = [];
  let notice: string | undefined;
  for (const candidate of candidates) {
    if (name !== 'auto' && name !== candidate.name) continue;
    const missing = (await candidate.missing(shape)) ?? (name === 'auto' ? await candidate.unwanted?.() : undefined);
    const opened =
      missing ??
      (await openTested(candidate, shape, options, test).catch((error: Error) => {
        // The CPU's memory is the same for the next device.
        if (name !== 'auto' || (error instanceof CapacityError && candidate.name !== 'webgpu')) throw error;
        return error.message;
      }));
    if (typeof opened !== 'string') {
      const about = `${candidate.name} (${candidate.about})${name === 'auto' ? '' : ', as requested'}`;
      const warmUp = (await candidate.unwanted?.()) === undefined;
      const why = [about, candidate.limitation?.(), ...skipped].filter(part => part !== undefined).join('; ');
      return { device: opened, why, notice, warmUp };
    }
    if (missing === undefined) notice = `${candidate.name} is not used: ${opened}`;
    skipped.push(`no ${candidate.name}: ${opened.replace(/\.$/, '')}`);
  }
  throw new UnsupportedError(
    `The ${name} device is not available (${skipped.join('; ')}). Use another device, or "auto".`,
  );
}

const GPU_ADVICE = 'Update the driver of the GPU, or the browser.';

/** Opens a candidate, or says what is wrong with its results. The device that is tested is another one. */
async function openTested(
  { tested, open }: Candidate,
  shape: DeviceShape,
  options: DeviceOptions,
  test: DeviceTest | undefined,
): Promise<Device | string> {
  const runner = test && (await tested?.());
  if (!test || !runner) return open(shape, options);
  const device = await open(shape, options);
  try {
    const wrong = await test(device);
    if (wrong) return `${runner} computes wrong results: ${wrong}. ${GPU_ADVICE}`;
  } catch (error) {
    if (!(error instanceof KvasirError)) throw error;
    return `${runner} failed its test: ${error.message} ${GPU_ADVICE}`;
  } finally {
    await device.dispose();
  }
  return open(shape, options);
}

/** Whether the device of this name is a GPU here, not one that the CPU emulates. */
export async function isGpu(name: DeviceName = 'auto'): Promise<boolean> {
  const [{ missing, unwanted }] = candidates;
  return ['auto', 'webgpu'].includes(name) && !(await missing()) && !(await unwanted?.());
}

export interface ListedDevice {
  name: string;
  about: string;
  /** Why it is not available. */
  missing?: string;
  /** Why `auto` skips it. */
  unwanted?: string;
}

/** Every device, fastest first. */
export async function listDevices(): Promise<ListedDevice[]> {
  return Promise.all(
    candidates.map(async ({ name, about, missing, unwanted }) => {
      return { name, about, missing: await missing(), unwanted: await unwanted?.() };
    }),
  );
}
