/**
 * Finding a GPU: `navigator.gpu` in browsers, Dawn (the optional package `webgpu`) in Node. Dawn's objects must stay
 * referenced: the process crashes some time after they are garbage-collected.
 */

import { platform } from '../../platform/node.ts';
import { DeviceError, UnsupportedError } from '../../util/errors.ts';
import { type Limits, limitsOf } from './limits.ts';
import { PACKED_FEATURE } from './packed-dots.ts';

const globalState = globalThis as unknown as { kvasirGpu?: { gpu?: Promise<GPU | string>; retained: Set<unknown> } };
globalState.kvasirGpu ??= { retained: new Set() };
const { retained } = globalState.kvasirGpu;

/** The WebGPU of this runtime, or why there is none. */
function findGpu(): Promise<GPU | string> {
  const state = globalState.kvasirGpu!;
  state.gpu ??= platform.openGpu();
  return state.gpu;
}

export interface AdapterInfo {
  name: string;
  /** Runs on the CPU: correct, but slower than the wasm device. */
  software: boolean;
  features: string[];
  /** Largest and smallest subgroup size; 0 without subgroups. */
  subgroups: number;
  subgroupMin: number;
  f16: boolean;
  /** Whether subgroups of 32 multiply f16 matrices of 16 x 16 by 16 x 16, and by 16 x 8, with f32 sums. */
  matrices: boolean;
  narrowMatrices: boolean;
  /** Whether WGSL has int8 dot products (packed-dots.ts). */
  packedDots: boolean;
  limits: Limits;
}

/** The adapter that Kvasir uses, or why there is none. */
export async function findAdapter(): Promise<{ adapter: GPUAdapter; info: AdapterInfo } | string> {
  const gpu = await findGpu();
  if (typeof gpu === 'string') return gpu;
  let adapter: GPUAdapter | null;
  try {
    adapter = await gpu.requestAdapter({ powerPreference: 'high-performance' });
  } catch (error) {
    return `WebGPU cannot look for a GPU (${(error as Error).message})`;
  }
  if (!adapter) return 'WebGPU finds no GPU (the driver or the Vulkan loader is missing)';
  retained.add(adapter);
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
    matrices: hasSubgroupMatrices(info, features, 16) && language?.has('subgroup_id') === true,
    narrowMatrices: hasSubgroupMatrices(info, features, 8),
    packedDots: language?.has(PACKED_FEATURE) === true,
    limits: limitsOf(limits),
  };
}

/** Experimental: not in the type definitions, and off by default in browsers. */
const SUBGROUP_MATRIX_FEATURE = 'chromium-experimental-subgroup-matrix';

function hasSubgroupMatrices(info: GPUAdapterInfo, features: GPUSupportedFeatures, columns: number): boolean {
  const { subgroupMatrixConfigs, subgroupMaxSize, subgroupMinSize } = info as GPUAdapterInfo & {
    subgroupMatrixConfigs?: { componentType: string; resultComponentType: string; M: number; N: number; K: number }[];
  };
  const subgroupsOf32 = subgroupMinSize === 32 && subgroupMaxSize === 32;
  const fits = subgroupMatrixConfigs?.some(
    ({ componentType, resultComponentType, M, N, K }) =>
      componentType === 'f16' && resultComponentType === 'f32' && M === 16 && N === columns && K === 16,
  );
  return (
    subgroupsOf32 &&
    fits === true &&
    [SUBGROUP_MATRIX_FEATURE, 'shader-f16', 'subgroups'].every(name => features.has(name))
  );
}

const FEATURES = ['subgroups', 'shader-f16', 'timestamp-query', SUBGROUP_MATRIX_FEATURE] as const;

export interface OpenedAdapter {
  device: GPUDevice;
  info: AdapterInfo;
}

/** Limits below the adapter's, to emulate other adapters. WebGPU's guaranteed minimum is the lower bound. */
export type LowerLimits = Partial<Limits>;

/** A device with the adapter's limits and the features that Kvasir uses. */
export async function openAdapter(lower: LowerLimits = {}): Promise<OpenedAdapter> {
  const found = await findAdapter();
  if (typeof found === 'string')
    throw new UnsupportedError(
      option =>
        `WebGPU is not available: ${found}. Use ${option('device', 'wasm')}, or ${option('device', 'auto')} for the best device there is.`,
    );
  const { adapter, info } = found;
  const limits = { ...info.limits, ...lower };
  const request: GPUDeviceDescriptor = {
    requiredFeatures: FEATURES.filter(feature => adapter.features.has(feature)) as GPUFeatureName[],
    requiredLimits: {
      maxBufferSize: limits.buffer,
      maxStorageBufferBindingSize: limits.binding,
      maxComputeWorkgroupStorageSize: limits.workgroupMemory,
      maxComputeInvocationsPerWorkgroup: limits.invocations,
      maxComputeWorkgroupSizeX: limits.invocations,
      maxStorageBuffersPerShaderStage: limits.storageBuffers,
    },
  };
  // Such as a driver that is broken, or out of memory.
  const device = await adapter.requestDevice(request).catch((error: Error) => {
    throw new DeviceError(
      `${info.name} cannot be opened (${error.message}). Close other programs that use it, or update its driver.`,
      { cause: error },
    );
  });
  retained.add(device);
  device.lost.then(() => retained.delete(device));
  return { device, info: { ...info, limits } };
}
