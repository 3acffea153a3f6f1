/** Tensors and blocks of the webgpu device. */
import { assert } from '../../util/errors.ts';
import type { Block, KvView, Tensor } from '../device.ts';
import type { GpuBlock, Pool } from './pool.ts';

export interface GpuTensor extends Tensor {
  buffer: GPUBuffer;
  /** The same rows as int8 (kernels/activations.ts), once an integer matrix has read them. */
  int8?: Int8Activations;
  /** Rows `first` to `end` - 1 as f16, for kernels/gemm-subgroup-matrix.ts. */
  f16?: { buffer: GPUBuffer; first: number; end: number };
}

export interface Int8Activations {
  codes: GPUBuffer;
  stats: GPUBuffer;
  /** Leading rows that are up to date with the floats. */
  validRows: number;
}

export const bufferOf = (tensor: Tensor): GPUBuffer => (tensor as GpuTensor).buffer;

/** The buffer of a tensor whose floats are about to change: invalidates copies in other formats. */
export function bufferForWriting(tensor: Tensor): GPUBuffer {
  const { buffer, int8, f16 } = tensor as GpuTensor;
  if (int8) int8.validRows = 0;
  if (f16) f16.end = 0;
  return buffer;
}

/** The int8 buffers, for a kernel that writes floats and int8; none if no integer matrix reads this tensor. */
export function int8ForWriting(tensor: Tensor): GPUBuffer[] {
  const { int8 } = tensor as GpuTensor;
  if (!int8) return [];
  int8.validRows = tensor.rows;
  return [int8.codes, int8.stats];
}

/** The slots of a tail's blocks, which are about to be used. Where there is no block, kernels read another one's tokens. */
export function tailSlots({ tail }: KvView): number[] {
  const any = tail.find(block => block !== undefined);
  return any ? tail.map(block => gpuBlock(block ?? any).slot) : [];
}

/** The pool of a tail's blocks; none if it is empty. */
export const tailPool = ({ tail }: KvView): Pool | undefined =>
  (tail.find(block => block !== undefined) as GpuBlock | undefined)?.pool;

/** A block that is about to be used. */
export function gpuBlock(block: Block): GpuBlock {
  const own = block as GpuBlock;
  assert(own.pool.hasMemory(own), 'a block is used before ensureMemory');
  return own;
}
