/**
 * Blocks of the cache. Blocks of one layout share a pool: a buffer for each layer, in which block n has slot n. A kernel
 * that works on one layer then finds the pages of every sequence in one binding, whatever the size of the whole cache.
 */
import { CapacityError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';
import type { Block } from '../device.ts';
import type { Gpu } from './gpu.ts';

export interface GpuBlock extends Block {
  readonly pool: Pool;
  readonly slot: number;
}

export class Pool {
  /** One a layer; others take their place when the pool grows. */
  buffers: GPUBuffer[] = [];
  /** Bytes of a slot, by layer. */
  readonly strides: readonly number[];
  private capacity = 0;
  private next = 0;
  private readonly freed: number[] = [];

  constructor(
    private readonly gpu: Gpu,
    private readonly bytes: number,
    private readonly cuts: readonly number[],
    private readonly most: number,
  ) {
    this.strides = cuts.map((cut, i) => (cuts[i + 1] ?? bytes) - cut);
  }

  take(): GpuBlock {
    const { bytes } = this;
    const used = this.freed.pop();
    if (used !== undefined) {
      this.buffers.forEach((buffer, i) => {
        if (this.strides[i] > 0) this.gpu.clear(buffer, used * this.strides[i], this.strides[i]);
      });
      return { bytes, pool: this, slot: used };
    }
    if (this.next === this.capacity) this.grow();
    return { bytes, pool: this, slot: this.next++ };
  }

  free({ slot }: GpuBlock): void {
    this.freed.push(slot);
  }

  private grow(): void {
    const largest = Math.floor(this.most / Math.max(4, ...this.strides));
    const capacity = Math.min(Math.max(8, 2 * this.capacity), largest);
    if (capacity <= this.capacity)
      throw new CapacityError(
        `The GPU binds at most ${formatBytes(this.most)} at once, and one layer of the cache has reached that. Close ` +
          "sequences, take a smaller context, a codec of fewer bits, or device: 'wasm'.",
      );
    this.buffers = this.strides.map((stride, i) => {
      const buffer = this.gpu.buffer(capacity * stride, `layer ${i} of a cache`);
      const old = this.buffers[i];
      if (old) {
        if (stride > 0) this.gpu.copy(old, 0, buffer, 0, this.capacity * stride);
        this.gpu.destroy(old);
      }
      return buffer;
    });
    this.capacity = capacity;
  }

  async read({ slot }: GpuBlock): Promise<Uint8Array<ArrayBuffer>> {
    const out = new Uint8Array(this.bytes);
    const parts = this.buffers.map((buffer, i) =>
      this.strides[i] > 0 ? this.gpu.read(buffer, slot * this.strides[i], this.strides[i]) : new ArrayBuffer(0),
    );
    for (const [i, part] of parts.entries()) out.set(new Uint8Array(await part), this.cuts[i]);
    return out;
  }

  write({ slot }: GpuBlock, data: Uint8Array): void {
    this.buffers.forEach((buffer, i) => {
      const [stride, cut] = [this.strides[i], this.cuts[i]];
      if (stride > 0) this.gpu.upload(buffer, slot * stride, data.slice(cut, cut + stride));
    });
  }

  dispose(): void {
    for (const buffer of this.buffers) this.gpu.destroy(buffer);
  }
}
