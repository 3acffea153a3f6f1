/**
 * Cache blocks. Blocks of the same layout share a pool with one buffer per part, in which block n is slot n. A kernel for
 * one part then finds the pages of all sequences in one binding, whatever the size of the whole cache.
 *
 * A new block is only a slot number; `grow` allocates its memory before the first use. Growing is asynchronous (old buffers
 * are copied, then freed) and may fail; existing blocks keep their memory then, and it can be retried.
 */
import { CapacityError } from '../../util/errors.ts';
import { formatBytes } from '../../util/units.ts';
import type { Block } from '../device.ts';
import type { Gpu } from './gpu.ts';

export interface GpuBlock extends Block {
  readonly pool: Pool;
  readonly slot: number;
}

const INITIAL_SLOTS = 8;

export class Pool {
  /** One per part, replaced when the pool grows. */
  readonly buffers: GPUBuffer[] = [];
  /** Bytes per slot, by part. */
  readonly strides: readonly number[];
  /** Slots with memory in every part. */
  private capacity = 0;
  private nextSlot = 0;
  private readonly freeSlots: number[] = [];
  private growing?: Promise<void>;
  /** Copies for blocks that have no memory yet, by slot: all parts, as in `partOffsets`. */
  private readonly waitingCopies = new Map<number, GPUBuffer>();

  constructor(
    private readonly gpu: Gpu,
    private readonly blockBytes: number,
    private readonly partOffsets: readonly number[],
    private readonly maxBindingBytes: number,
  ) {
    this.strides = partOffsets.map((cut, i) => (partOffsets[i + 1] ?? blockBytes) - cut);
  }

  allocate(): GpuBlock {
    const { blockBytes: bytes } = this;
    const used = this.freeSlots.pop();
    if (used !== undefined) {
      if (used < this.capacity) this.clear(used);
      return { bytes, pool: this, slot: used };
    }
    if (this.nextSlot === this.maxSlots)
      throw new CapacityError(
        option =>
          `One layer of the cache has reached ${formatBytes(this.maxBindingBytes)}, the largest binding of this GPU. Close ` +
          `conversations, or use a smaller ${option('context')}, a codec with fewer bits, or ${option('device', 'wasm')}.`,
      );
    return { bytes, pool: this, slot: this.nextSlot++ };
  }

  free({ slot }: GpuBlock): void {
    this.freeSlots.push(slot);
    this.removeWaitingCopy(slot);
    // Do not allocate memory for slots that are no longer used.
    while (this.needsMemory) {
      const at = this.freeSlots.indexOf(this.nextSlot - 1);
      if (at < 0) return;
      this.freeSlots.splice(at, 1);
      this.nextSlot--;
    }
  }

  get needsMemory(): boolean {
    return this.nextSlot > this.capacity;
  }

  hasMemory({ slot }: GpuBlock): boolean {
    return slot < this.capacity;
  }

  /** Doubles the capacity, or allocates only what is needed if there is not enough memory for that. */
  grow(): Promise<void> {
    this.growing ??= this.growTo(Math.max(INITIAL_SLOTS, 2 * this.capacity, this.nextSlot))
      .catch(error => {
        if (!(error instanceof CapacityError) || !this.needsMemory) throw error;
        return this.growTo(this.nextSlot);
      })
      .finally(() => {
        this.growing = undefined;
      });
    return this.growing;
  }

  /** One part at a time, so that at most one exists twice. */
  private async growTo(slots: number): Promise<void> {
    const capacity = Math.min(slots, this.maxSlots);
    for (const [i, stride] of this.strides.entries()) {
      const old = this.buffers[i];
      // May have grown in an attempt that failed at a later part.
      if (old && old.size >= capacity * stride) continue;
      const buffer = await this.gpu.allocateBuffer(capacity * stride, `cache layer ${i}`);
      this.buffers[i] = buffer;
      if (!old) continue;
      if (stride > 0) this.gpu.copy(old, 0, buffer, 0, this.capacity * stride);
      this.gpu.destroy(old);
      await this.gpu.waitUntilIdle();
    }
    this.capacity = Math.max(this.capacity, capacity);
    for (const [slot, copy] of this.waitingCopies) {
      if (slot >= this.capacity) continue;
      this.writeCopy(copy, slot);
      this.removeWaitingCopy(slot);
    }
  }

  private writeCopy(copy: GPUBuffer, slot: number): void {
    this.eachLayer((buffer, stride, offset) => this.gpu.copy(copy, offset, buffer, slot * stride, stride));
  }

  private removeWaitingCopy(slot: number): void {
    const copy = this.waitingCopies.get(slot);
    if (copy) this.gpu.destroy(copy);
    this.waitingCopies.delete(slot);
  }

  /** Layers that have bytes: their buffer, bytes per slot, and offset in a block. */
  private eachLayer(visit: (buffer: GPUBuffer, stride: number, offset: number) => void): void {
    this.buffers.forEach((buffer, i) => {
      if (this.strides[i] > 0) visit(buffer, this.strides[i], this.partOffsets[i]);
    });
  }

  private get maxSlots(): number {
    return Math.floor(this.maxBindingBytes / Math.max(4, ...this.strides));
  }

  private clear(slot: number): void {
    this.eachLayer((buffer, stride) => this.gpu.clear(buffer, slot * stride, stride));
  }

  async read({ slot }: GpuBlock): Promise<Uint8Array<ArrayBuffer>> {
    const out = new Uint8Array(this.blockBytes);
    const parts = this.buffers.map((buffer, i) =>
      this.strides[i] > 0 ? this.gpu.read(buffer, slot * this.strides[i], this.strides[i]) : new ArrayBuffer(0),
    );
    for (const [i, part] of (await Promise.all(parts)).entries()) out.set(new Uint8Array(part), this.partOffsets[i]);
    return out;
  }

  write({ slot }: GpuBlock, data: Uint8Array): void {
    this.eachLayer((buffer, stride, offset) =>
      this.gpu.upload(buffer, slot * stride, data.slice(offset, offset + stride)),
    );
  }

  /** Of blocks that need not have memory yet. */
  copy(from: GpuBlock, to: GpuBlock): void {
    const source = this.waitingCopies.get(from.slot);
    if (!this.hasMemory(to)) {
      this.removeWaitingCopy(to.slot);
      const copy = this.gpu.createBuffer(this.blockBytes, 'copied block');
      this.waitingCopies.set(to.slot, copy);
      if (source) this.gpu.copy(source, 0, copy, 0, this.blockBytes);
      // Otherwise it was never written to: zeros.
      else if (this.hasMemory(from))
        this.eachLayer((buffer, stride, offset) => this.gpu.copy(buffer, from.slot * stride, copy, offset, stride));
    } else if (source) this.writeCopy(source, to.slot);
    else if (this.hasMemory(from)) this.copySlot(from.slot, to.slot);
    else this.clear(to.slot);
  }

  /** Through a buffer in between: WebGPU does not copy from a buffer to itself. */
  private copySlot(from: number, to: number): void {
    const between = this.gpu.scratch('block to copy', Math.max(...this.strides));
    this.eachLayer((buffer, stride) => {
      this.gpu.copy(buffer, from * stride, between, 0, stride);
      this.gpu.copy(between, 0, buffer, to * stride, stride);
    });
  }
}
