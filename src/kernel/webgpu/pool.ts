/**
 * Blocks of the cache. Blocks of one layout share a pool: a buffer for each layer, in which block n has slot n. A kernel
 * that works on one layer then finds the pages of every sequence in one binding, whatever the size of the whole cache.
 *
 * A block is a slot number at first; `grow` gives it memory, before its first use. Growing needs to wait (whether there is
 * memory is not known at once, and old buffers are freed only after they were copied), and may fail: nothing is lost then,
 * blocks that have memory keep it, and it can be tried again.
 */
import { CapacityError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';
import type { Block } from '../device.ts';
import type { Gpu } from './gpu.ts';

export interface GpuBlock extends Block {
  readonly pool: Pool;
  readonly slot: number;
}

/** Slots of a new pool. */
const FIRST = 8;

export class Pool {
  /** One a layer; others take their place when the pool grows. */
  readonly buffers: GPUBuffer[] = [];
  /** Bytes of a slot, by layer. */
  readonly strides: readonly number[];
  /** Slots that have memory in every layer. */
  private capacity = 0;
  private next = 0;
  private readonly freed: number[] = [];
  private growing?: Promise<void>;

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
      if (used < this.capacity) this.clear(used);
      return { bytes, pool: this, slot: used };
    }
    if (this.next === this.largest)
      throw new CapacityError(
        `The GPU binds at most ${formatBytes(this.most)} at once, and one layer of the cache has reached that. Close ` +
          "sequences, take a smaller context, a codec of fewer bits, or device: 'wasm'.",
      );
    return { bytes, pool: this, slot: this.next++ };
  }

  free({ slot }: GpuBlock): void {
    this.freed.push(slot);
    // Memory that nobody wants any more is not asked for again.
    while (this.isShort) {
      const at = this.freed.indexOf(this.next - 1);
      if (at < 0) return;
      this.freed.splice(at, 1);
      this.next--;
    }
  }

  /** Whether some blocks have no memory yet. */
  get isShort(): boolean {
    return this.next > this.capacity;
  }

  has({ slot }: GpuBlock): boolean {
    return slot < this.capacity;
  }

  /** Memory for all blocks, and for as many more as there are; for these alone if there is not that much. */
  grow(): Promise<void> {
    this.growing ??= this.growTo(Math.max(FIRST, 2 * this.capacity, this.next))
      .catch(error => {
        if (!(error instanceof CapacityError) || !this.isShort) throw error;
        return this.growTo(this.next);
      })
      .finally(() => {
        this.growing = undefined;
      });
    return this.growing;
  }

  /** A layer at a time, so that at most one of them is held twice. */
  private async growTo(slots: number): Promise<void> {
    const capacity = Math.min(slots, this.largest);
    for (const [i, stride] of this.strides.entries()) {
      const old = this.buffers[i];
      // A layer may have grown before another one could not.
      if (old && old.size >= capacity * stride) continue;
      const buffer = await this.gpu.reserve(capacity * stride, `layer ${i} of a cache`);
      this.buffers[i] = buffer;
      if (!old) continue;
      if (stride > 0) this.gpu.copy(old, 0, buffer, 0, this.capacity * stride);
      this.gpu.destroy(old);
      await this.gpu.done();
    }
    this.capacity = Math.max(this.capacity, capacity);
  }

  private get largest(): number {
    return Math.floor(this.most / Math.max(4, ...this.strides));
  }

  private clear(slot: number): void {
    this.buffers.forEach((buffer, i) => {
      if (this.strides[i] > 0) this.gpu.clear(buffer, slot * this.strides[i], this.strides[i]);
    });
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
}
