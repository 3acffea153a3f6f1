/** Builds a sequence from stored bytes: those of its leaves one by one, then its sinks and its tail. */
import type { Device, KvShape } from '../kernel/device.ts';
import type { SealingRule } from '../kernel/visibility.ts';
import { f16Block, type LeafLayout, leafBlock, windowBlock } from './leaf.ts';
import { checkPause, type Pause } from './pause.ts';
import type { Pool, SharedBlock } from './pool.ts';
import type { Leaf } from './prefix-node.ts';
import type { Sequence, SequenceStart } from './sequence.ts';
import { tailFileBytes, writeTail } from './tail.ts';

/** A sequence that is being restored, between passes. */
export interface Restoring {
  readonly sinkBytes: number;
  /** Bytes of the tail in a file. */
  readonly tailBytes: number;
  /** Adds the next leaf. */
  addLeaf(pause: Pause, bytes: Uint8Array): Promise<void>;
  /** Adds the window page of a leaf: of each that is visible after all of them. */
  addWindowPage(pause: Pause, page: number, bytes: Uint8Array): Promise<void>;
  /**
   * Keeps the sequence as the idle one of `owner`. `shares`: its leaves are known to be those that this device would
   * compute, so other prompts may use them.
   */
  finish(pause: Pause, content: RestoredContent, owner: object, shares: boolean): Promise<void>;
  discard(): void;
}

/** What a restored sequence holds besides its leaves. */
export interface RestoredContent {
  ids: readonly number[];
  sinks: Uint8Array;
  /** As in a file. */
  tail: Uint8Array;
}

interface RestoreOptions {
  device: Device;
  pool: Pool;
  shape: Pick<KvShape, 'layers' | 'kvHeads' | 'headDim' | 'sinks'>;
  leaf: LeafLayout;
  sealing: SealingRule;
  create(start: SequenceStart, shares: boolean): Sequence;
  keep(sequence: Sequence, owner: object): void;
}

export function startRestoring({
  device,
  pool,
  shape,
  leaf: layout,
  sealing,
  create,
  keep,
}: RestoreOptions): Restoring {
  const held: SharedBlock[] = [];
  const discard = () => {
    for (const block of held.splice(0)) pool.release(block);
  };
  const allocate = (bytes: number, offsets: readonly number[]) => {
    const block = pool.allocate(bytes, offsets);
    held.push(block);
    return block;
  };
  const leaves: Leaf[] = [];
  const place = async (size: [bytes: number, offsets: number[]], bytes: Uint8Array) => {
    const shared = allocate(...size);
    await device.ensureMemory?.([{ leaves: [shared.block], tail: [], sinkBlock: sinks.block }]);
    device.writeBlock(shared.block, bytes);
    return shared;
  };
  const sinks = allocate(...f16Block(shape, shape.sinks));
  return {
    sinkBytes: sinks.block.bytes,
    tailBytes: tailFileBytes(shape, sealing),
    async addLeaf(pause, bytes) {
      checkPause(pause);
      leaves.push(await place(leafBlock(layout), bytes));
    },
    async addWindowPage(pause, page, bytes) {
      checkPause(pause);
      leaves[page].windowPage = await place(windowBlock(layout), bytes);
    },
    async finish(pause, { ids, sinks: sinkBytes, tail }, owner, shares) {
      checkPause(pause);
      const sequence = create({ ids, leaves, sinks }, shares);
      const unsealed = { from: leaves.length * sealing.pageTokens, to: ids.length };
      try {
        await device.ensureMemory?.([sequence.view]);
      } catch (error) {
        sequence.dispose();
        throw error;
      }
      device.writeBlock(sinks.block, sinkBytes);
      writeTail(device, sequence.view, sealing, unsealed, tail);
      sequence.commit(0, []);
      keep(sequence, owner);
      discard();
    },
    discard,
  };
}
