/**
 * The limits of an adapter, and what a kernel needs. Variants of a kernel are selected by them, and no pipeline is created
 * for a kernel that exceeds them: WebGPU would refuse it, and every command after it.
 */
import { assert, UnsupportedError } from '../../util/errors.ts';
import { formatBytes } from '../../util/units.ts';
import { declarationsOf } from './declarations.ts';
import type { Kernel } from './kernel.ts';

export interface Limits {
  /** Bytes of the largest binding and of the largest buffer. */
  binding: number;
  buffer: number;
  /** Bytes of workgroup memory, and invocations per workgroup. */
  workgroupMemory: number;
  invocations: number;
  /** Storage buffers that one kernel may bind. */
  storageBuffers: number;
}

export type KernelLimits = Pick<Limits, 'workgroupMemory' | 'invocations' | 'storageBuffers'>;

export const limitsOf = (limits: GPUSupportedLimits): Limits => ({
  binding: limits.maxStorageBufferBindingSize,
  buffer: limits.maxBufferSize,
  workgroupMemory: limits.maxComputeWorkgroupStorageSize,
  invocations: Math.min(limits.maxComputeInvocationsPerWorkgroup, limits.maxComputeWorkgroupSizeX),
  storageBuffers: limits.maxStorageBuffersPerShaderStage,
});

/** The limit that a kernel exceeds, as text for messages; undefined if it fits. */
export function exceededLimit(kernel: Kernel, limits: KernelLimits): string | undefined {
  const { buffers, size } = kernel;
  if (buffers.length > limits.storageBuffers)
    return `${buffers.length} storage buffers; this GPU allows ${limits.storageBuffers}`;
  if (size > limits.invocations) return `${size} invocations per workgroup; this GPU allows ${limits.invocations}`;
  const bytes = workgroupBytes(kernel);
  if (bytes > limits.workgroupMemory)
    return `${formatBytes(bytes)} of workgroup memory; this GPU has ${formatBytes(limits.workgroupMemory)}`;
  return undefined;
}

export const fits = (kernel: Kernel, limits: KernelLimits): boolean => exceededLimit(kernel, limits) === undefined;

export function requireFit(kernel: Kernel, limits: KernelLimits): void {
  const exceeded = exceededLimit(kernel, limits);
  if (exceeded)
    throw new UnsupportedError(
      option =>
        `The kernel "${kernel.name.slice(0, 80)}" needs ${exceeded}. Use another codec, or ${option('device', 'wasm')}.`,
    );
}

/** The first variant whose kernels all fit. The error names the limit that the last variant exceeds. */
export function firstFit<Variant>(
  variants: readonly Variant[],
  kernelsOf: (variant: Variant) => readonly Kernel[],
  limits: KernelLimits,
): Variant {
  const found = variants.find(variant => kernelsOf(variant).every(kernel => fits(kernel, limits)));
  if (!found) for (const kernel of kernelsOf(variants[variants.length - 1])) requireFit(kernel, limits);
  return found!;
}

const knownBytes = new WeakMap<Kernel, number>();

/** Workgroup memory of a kernel, counted as WebGPU does. */
export function workgroupBytes(kernel: Kernel): number {
  const bytes = knownBytes.get(kernel) ?? declaredBytes(kernel.body);
  knownBytes.set(kernel, bytes);
  return bytes;
}

function declaredBytes(text: string): number {
  const declared = declarationsOf(text);
  const structs = new Map(declared.map(({ name, members = '' }) => [name, members]));
  let sum = 0;
  for (const { kind, type = '' } of declared)
    if (kind === 'var<workgroup>') sum += roundUp(layoutOf(type.trim(), structs).size, 16);
  return sum;
}

interface Layout {
  size: number;
  align: number;
}

const SCALARS: Record<string, number> = { f32: 4, i32: 4, u32: 4, f16: 2 };
/** For `vec4f` and so on. */
const SUFFIXES: Record<string, string> = { f: 'f32', i: 'i32', u: 'u32', h: 'f16' };

const roundUp = (n: number, to: number) => Math.ceil(n / to) * to;

/** Size and alignment of a type, as WGSL lays it out. */
function layoutOf(type: string, structs: ReadonlyMap<string, string>): Layout {
  const scalar = SCALARS[type];
  if (scalar) return { size: scalar, align: scalar };
  const atomic = /^atomic<(.+)>$/.exec(type);
  if (atomic) return layoutOf(atomic[1], structs);
  const vector = /^vec([234])(?:([fiuh])|<(\w+)>)$/.exec(type);
  if (vector) {
    const of = SCALARS[vector[3] ?? SUFFIXES[vector[2]]];
    const count = Number(vector[1]);
    return { size: of * count, align: of * (count === 3 ? 4 : count) };
  }
  const array = /^array<(.+),\s*(\d+)>$/.exec(type);
  if (array) {
    const { size, align } = layoutOf(array[1].trim(), structs);
    return { size: roundUp(size, align) * Number(array[2]), align };
  }
  const members = structs.get(type);
  assert(members, `the size of the workgroup type ${type} is unknown`);
  return structLayout(members, structs);
}

function structLayout(members: string, structs: ReadonlyMap<string, string>): Layout {
  let [end, align] = [0, 1];
  for (const member of splitMembers(members)) {
    const own = layoutOf(member.slice(member.indexOf(':') + 1).trim(), structs);
    end = roundUp(end, own.align) + own.size;
    align = Math.max(align, own.align);
  }
  return { size: roundUp(end, align), align };
}

/** Splits at commas outside of brackets. */
const splitMembers = (members: string): string[] =>
  members
    .split(/,(?![^<]*>)/)
    .map(member => member.trim())
    .filter(Boolean);
