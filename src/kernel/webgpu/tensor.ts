/** Handles of the webgpu device. */
import { assert } from '../../errors.ts';
import type { Block, Tensor } from '../device.ts';
import type { GpuBlock } from './pool.ts';

export interface GpuTensor extends Tensor {
  buffer: GPUBuffer;
  /** The same rows as int8 (kernels/activations.ts), once a matrix of integers has read them. */
  int8?: Int8;
  /** The same as halves (kernels/matrices.ts), rows from `first` to before `end`. */
  halves?: { buffer: GPUBuffer; first: number; end: number };
}

export interface Int8 {
  codes: GPUBuffer;
  stats: GPUBuffer;
  /** Rows, from the first on, that were made since the floats were. */
  fresh: number;
}

export const bufferOf = (tensor: Tensor): GPUBuffer => (tensor as GpuTensor).buffer;

/** The buffer of a tensor whose floats are about to change. */
export function changed(tensor: Tensor): GPUBuffer {
  const { buffer, int8, halves } = tensor as GpuTensor;
  if (int8) int8.fresh = 0;
  if (halves) halves.end = 0;
  return buffer;
}

/** For a kernel that writes floats and int8 together: the buffers of the latter, if they are wanted. */
export function renewed(tensor: Tensor): GPUBuffer[] {
  const { int8 } = tensor as GpuTensor;
  if (!int8) return [];
  int8.fresh = tensor.rows;
  return [int8.codes, int8.stats];
}

/** A block that is about to be read or written: it must have memory by now. */
export function blockOf(block: Block): GpuBlock {
  const own = block as GpuBlock;
  assert(own.pool.has(own), 'a block is used before the device is ready for it');
  return own;
}
