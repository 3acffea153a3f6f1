/**
 * Finding a GPU: `navigator.gpu` in browsers, Dawn (the optional package `webgpu`) in Node. What Dawn hands out must
 * stay referenced: it crashes the process at some later time once its objects were collected.
 */
import { UnsupportedError } from '../../errors.ts';
import { type Limits, limitsOf } from './limits.ts';
import { PACKED_FEATURE } from './packed.ts';

/** Dawn's switches: f16 and exact timestamps where the hardware has them. */
const DAWN = [
  'enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia,use_vulkan_memory_model',
  'disable-dawn-features=timestamp_quantization',
];

const keep = globalThis as unknown as { kvasirGpu?: { gpu?: Promise<GPU | string>; held: Set<unknown> } };
keep.kvasirGpu ??= { held: new Set() };
const { held } = keep.kvasirGpu;

/** The WebGPU of this place, or why there is none. */
function findGpu(): Promise<GPU | string> {
  const kept = keep.kvasirGpu!;
  kept.gpu ??= openGpu();
  return kept.gpu;
}

async function openGpu(): Promise<GPU | string> {
  const here = (globalThis as { navigator?: { gpu?: GPU } }).navigator?.gpu;
  if (here) return here;
  if (typeof process === 'undefined' || !process.versions?.node)
    return 'this browser has no WebGPU (or the page is not served from https or localhost)';
  return openDawn();
}

/** For people: what is missing, what it is, and how to add it in each way of running Kvasir. */
const WITHOUT_DAWN =
  'the optional package webgpu (Dawn, the WebGPU of Chrome, 130 MB) is not installed: npm install webgpu, with -g ' +
  'beside a global kvasir, or npx -p kvasir -p webgpu kvasir ...';

async function openDawn(): Promise<GPU | string> {
  const { createRequire } = await import('node:module');
  const { pathToFileURL } = await import('node:url');
  let path: string;
  try {
    // By way of `require`, which looks into NODE_PATH too: a bundle on a bare machine has its packages there.
    path = createRequire(import.meta.url).resolve('webgpu');
  } catch {
    return WITHOUT_DAWN;
  }
  if (process.platform === 'linux' && !(await hasVulkan()))
    return 'there is no Vulkan loader, libvulkan.so.1 (Debian: apt-get install libvulkan1, and a driver)';
  try {
    const dawn: { create(flags: string[]): GPU } = await import(pathToFileURL(path).href);
    return dawn.create(DAWN);
  } catch (error) {
    return `the optional package webgpu does not work here: ${(error as Error).message}`;
  }
}

/** Dawn writes a warning of its own where it finds none, which is no news to somebody who asked for `auto`. */
async function hasVulkan(): Promise<boolean> {
  const { existsSync, readFileSync } = await import('node:fs');
  const folders = (process.env.LD_LIBRARY_PATH ?? '').split(':').filter(Boolean);
  if (folders.some(folder => existsSync(`${folder}/libvulkan.so.1`))) return true;
  try {
    return readFileSync('/etc/ld.so.cache').includes('libvulkan.so.1');
  } catch {
    // Not a system of glibc: Dawn itself will say.
    return true;
  }
}

export interface AdapterInfo {
  name: string;
  /** Runs on the CPU: correct, and slower than wasm. */
  software: boolean;
  features: string[];
  /** Lanes that run together, at most and at least; 0 where subgroups are not offered. */
  subgroups: number;
  subgroupMin: number;
  f16: boolean;
  /** Whether subgroups of 32 multiply matrices of 16 x 16 halves and add them up as floats; and by 16 x 8. */
  matrices: boolean;
  narrowMatrices: boolean;
  /** Whether WGSL has int8 dots by itself (packed.ts). */
  packedDots: boolean;
  limits: Limits;
}

/** The adapter that would be taken, or why there is none. */
export async function findAdapter(): Promise<{ adapter: GPUAdapter; info: AdapterInfo } | string> {
  const gpu = await findGpu();
  if (typeof gpu === 'string') return gpu;
  const adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' });
  if (!adapter) return 'there is no GPU that WebGPU can use (no driver, or no Vulkan loader)';
  held.add(adapter);
  return { adapter, info: describe(adapter, gpu.wgslLanguageFeatures) };
}

function describe({ info, features, limits }: GPUAdapter, language?: ReadonlySet<string>): AdapterInfo {
  const { vendor, architecture, device, description } = info;
  const { isFallbackAdapter, subgroupMaxSize, subgroupMinSize } = info as {
    isFallbackAdapter?: boolean;
    subgroupMaxSize?: number;
    subgroupMinSize?: number;
  };
  const all = [vendor, architecture, device, description].join(' ');
  return {
    name: description || device || `${vendor} ${architecture}`.trim() || 'an adapter without a name',
    software: isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|software/i.test(all),
    features: [...features].sort(),
    subgroups: features.has('subgroups') ? (subgroupMaxSize ?? 0) : 0,
    subgroupMin: features.has('subgroups') ? (subgroupMinSize ?? 0) : 0,
    f16: features.has('shader-f16'),
    matrices: hasMatrices(info, features, 16) && language?.has('subgroup_id') === true,
    narrowMatrices: hasMatrices(info, features, 8),
    packedDots: language?.has(PACKED_FEATURE) === true,
    limits: limitsOf(limits),
  };
}

/** Not in the types yet, nor in any browser unless it is asked for. */
const MATRICES = 'chromium-experimental-subgroup-matrix';

function hasMatrices(info: GPUAdapterInfo, features: GPUSupportedFeatures, columns: number): boolean {
  const { subgroupMatrixConfigs, subgroupMaxSize, subgroupMinSize } = info as GPUAdapterInfo & {
    subgroupMatrixConfigs?: { componentType: string; resultComponentType: string; M: number; N: number; K: number }[];
  };
  const lanes = subgroupMinSize === 32 && subgroupMaxSize === 32;
  const fits = subgroupMatrixConfigs?.some(
    ({ componentType, resultComponentType, M, N, K }) =>
      componentType === 'f16' && resultComponentType === 'f32' && M === 16 && N === columns && K === 16,
  );
  return lanes && fits === true && [MATRICES, 'shader-f16', 'subgroups'].every(name => features.has(name));
}

const FEATURES = ['subgroups', 'shader-f16', 'timestamp-query', MATRICES] as const;

export interface OpenedAdapter {
  device: GPUDevice;
  info: AdapterInfo;
}

/** Lower limits than the adapter's, as other adapters have them. No device has less than WebGPU guarantees. */
export type LowerLimits = Partial<Limits>;

/** A device with everything that the adapter offers and Kvasir has a use for. */
export async function openAdapter(lower: LowerLimits = {}): Promise<OpenedAdapter> {
  const found = await findAdapter();
  if (typeof found === 'string')
    throw new UnsupportedError(`No WebGPU here: ${found}. Use device: 'wasm', or 'auto' to take what there is.`);
  const { adapter, info } = found;
  const limits = { ...info.limits, ...lower };
  const device = await adapter.requestDevice({
    requiredFeatures: FEATURES.filter(feature => adapter.features.has(feature)) as GPUFeatureName[],
    requiredLimits: {
      maxBufferSize: limits.buffer,
      maxStorageBufferBindingSize: limits.binding,
      maxComputeWorkgroupStorageSize: limits.workgroupMemory,
      maxComputeInvocationsPerWorkgroup: limits.invocations,
      maxComputeWorkgroupSizeX: limits.invocations,
      maxStorageBuffersPerShaderStage: limits.storageBuffers,
    },
  });
  held.add(device);
  device.lost.then(() => held.delete(device));
  return { device, info: { ...info, limits } };
}
