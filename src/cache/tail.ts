/**
 * A sequence's f16 tail: a ring of small blocks (kernel/visibility.ts), of which only those with tokens are allocated. Files
 * hold it as one ring of tailCapacity tokens, [layer][keys, values][kv head][token % capacity][headDim], zeros where there
 * is no token.
 */

import type { Block, Device, KvShape, KvView } from '../kernel/device.ts';
import { type SealingRule, tailBlocks, tailBlockTokens, tailCapacity } from '../kernel/visibility.ts';
import { assert } from '../util/errors.ts';
import { f16Block, f16BlockBytes } from './leaf.ts';
import type { Pool, SharedBlock } from './pool.ts';

/** Tokens from `from` to before `to`. */
export interface TokenRange {
  from: number;
  to: number;
}

export interface Tail {
  readonly blocks: KvView['tail'];
  readonly bytes: number;
  /** The blocks that are allocated. */
  readonly shared: readonly SharedBlock[];
  /** Bytes that `grow` would allocate. */
  bytesFor(tokens: TokenRange): number;
  /** Allocates the blocks of these tokens, to be written: those that somebody else holds are replaced by copies. */
  grow(tokens: TokenRange): void;
  /** Allocates the blocks of these tokens, with the content of another tail, if there is any. The tail is empty before. */
  copy(tokens: TokenRange, from: KvView['tail']): void;
  /** Frees all other blocks. */
  trim(tokens: TokenRange): void;
  /** The ring with the blocks of these tokens only. */
  blocksOf(tokens: TokenRange): (SharedBlock | undefined)[];
}

/** Capacity of the ring in tokens. */
export const tailTokens = (sealing: SealingRule): number => tailBlocks(sealing) * tailBlockTokens(sealing.pageTokens);

export function createTail(
  pool: Pool,
  shape: Pick<KvShape, 'layers' | 'kvHeads' | 'headDim'>,
  sealing: SealingRule,
): Tail {
  const blockTokens = tailBlockTokens(sealing.pageTokens);
  const ring: (SharedBlock | undefined)[] = Array(tailBlocks(sealing)).fill(undefined);
  let blocks: KvView['tail'] = [];
  const noteChange = () => {
    blocks = ring.map(shared => shared?.block);
  };
  const allocated = () => ring.filter(shared => shared !== undefined);
  const placesOf = ({ from, to }: TokenRange): number[] => {
    const first = Math.floor(from / blockTokens);
    const count = Math.min(ring.length, Math.ceil(to / blockTokens) - first);
    return Array.from({ length: Math.max(0, count) }, (_, i) => (first + i) % ring.length);
  };
  const bytesOf = (count: number) => count * f16BlockBytes(shape, blockTokens);
  const isOwn = (shared?: SharedBlock) => shared?.holders === 1;
  const createBlock = (content?: Block): SharedBlock => {
    const size = f16Block(shape, blockTokens);
    return content ? pool.allocateCopy(content, ...size) : pool.allocate(...size);
  };
  noteChange();
  return {
    get blocks() {
      return blocks;
    },
    get bytes() {
      return bytesOf(allocated().length);
    },
    get shared() {
      return allocated();
    },
    bytesFor: tokens => bytesOf(placesOf(tokens).filter(place => !isOwn(ring[place])).length),
    grow(tokens) {
      for (const place of placesOf(tokens)) {
        const before = ring[place];
        if (isOwn(before)) continue;
        ring[place] = createBlock(before?.block);
        if (before) pool.release(before);
        noteChange();
      }
    },
    copy(tokens, from) {
      for (const place of placesOf(tokens)) ring[place] = createBlock(from[place]);
      noteChange();
    },
    trim(tokens) {
      const kept = placesOf(tokens);
      ring.forEach((shared, place) => {
        if (!shared || kept.includes(place)) return;
        pool.release(shared);
        ring[place] = undefined;
        noteChange();
      });
    },
    blocksOf(tokens) {
      const places = placesOf(tokens);
      return ring.map((shared, place) => (places.includes(place) ? shared : undefined));
    },
  };
}

/** Bytes of a tail in a file. */
export const tailFileBytes = (shape: Pick<KvShape, 'layers' | 'kvHeads' | 'headDim'>, sealing: SealingRule): number =>
  f16BlockBytes(shape, tailCapacity(sealing));

/** Visits the vectors of these tokens: their block, byte offsets in it and in a file, and number of bytes. */
function eachVector(
  { shape, tail }: KvView,
  sealing: SealingRule,
  { from, to }: TokenRange,
  visit: (block: Block, at: number, inFile: number, bytes: number) => void,
): void {
  const blockTokens = tailBlockTokens(sealing.pageTokens);
  const capacity = tailCapacity(sealing);
  const bytes = 2 * shape.headDim;
  for (let token = from; token < to; token++) {
    const place = token % shape.tailTokens;
    const block = tail[Math.floor(place / blockTokens)];
    assert(block, `token ${token} has no block in the tail`);
    for (let head = 0; head < 2 * shape.kvHeads * shape.layers.length; head++)
      visit(
        block,
        (head * blockTokens + (place % blockTokens)) * bytes,
        (head * capacity + (token % capacity)) * bytes,
        bytes,
      );
  }
}

/** The tail of a sequence as in a file. Sealed and removed tokens are not in it. */
export async function readTail(
  device: Pick<Device, 'readBlock'>,
  view: KvView,
  sealing: SealingRule,
  tokens: TokenRange,
): Promise<Uint8Array> {
  const file = new Uint8Array(tailFileBytes(view.shape, sealing));
  const contents = new Map<Block, Uint8Array>();
  for (const block of view.tail) if (block) contents.set(block, await device.readBlock(block));
  eachVector(view, sealing, tokens, (block, at, inFile, bytes) => {
    file.set(contents.get(block)!.subarray(at, at + bytes), inFile);
  });
  return file;
}

/** The reverse: writes to the blocks of the tail. */
export function writeTail(
  device: Pick<Device, 'writeBlock'>,
  view: KvView,
  sealing: SealingRule,
  tokens: TokenRange,
  file: Uint8Array,
): void {
  const contents = new Map<Block, Uint8Array>();
  for (const block of view.tail) if (block) contents.set(block, new Uint8Array(block.bytes));
  eachVector(view, sealing, tokens, (block, at, inFile, bytes) => {
    contents.get(block)!.set(file.subarray(inFile, inFile + bytes), at);
  });
  for (const [block, bytes] of contents) device.writeBlock(block, bytes);
}
