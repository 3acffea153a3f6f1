/**
 * A cache of tiny pages on the js device, filled with values that identify the text before them: a block that holds the
 * values of another text, or of another salt, is found at once.
 */
import { expect } from 'vitest';
import { type LayerCodecs, leafLayout } from '../../src/cache/leaf.ts';
import type { Pause } from '../../src/cache/pause.ts';
import type { Sequence, SequenceRun } from '../../src/cache/sequence.ts';
import type { Block, Device } from '../../src/kernel/device.ts';
import { fromF16 } from '../../src/kernel/float.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { firstVisible, pageBlock, tailBlockTokens } from '../../src/kernel/visibility.ts';

export const PAGE = 4;
/** Tests without an engine have no passes to wait for. */
export const PAUSE = { isOver: false } as Pause;
const TAIL_BLOCK = tailBlockTokens(PAGE);
const DIMS = 2;

/** Token ids of a text: each follows the one before it. */
export const numbers = (count: number, first = 0): number[] => Array.from({ length: count }, (_, i) => first + i);

/** Stores vectors as they are. */
const identity = {
  pageBytes: 4 * PAGE * DIMS,
  encode: (x: Float32Array, _tokens: number, page: Uint8Array) => page.set(new Uint8Array(x.buffer)),
  decode: (page: Uint8Array, _tokens: number, out: Float32Array) => new Uint8Array(out.buffer).set(page),
};
const layer = { keys: identity, values: identity } as unknown as LayerCodecs;
export const LEAF = leafLayout([layer]);
/** With a second layer, which sees only the last tokens. */
export const windowedLeaf = (window: number) => leafLayout([layer, layer], { windows: [undefined, window] });
/** In two-tier mode. */
export const TWO_TIER_LEAF = leafLayout([layer], { exact: layer });
/** The same, with a tensor for the errors of pages. */
const tracked = { ...identity, squaredError: () => 0 };
export const TRACKED_LEAF = leafLayout([{ keys: tracked, values: tracked } as unknown as LayerCodecs]);

export const tinyShape = (sinks: number) => ({ headDim: DIMS, kvHeads: 1, pageTokens: PAGE, sinks });

/** The js device, with the blocks and tensors that are allocated. `failAfter(n)` makes the n-th allocation or copy fail. */
export function createObservedDevice() {
  const device = createJsDevice();
  const allocated = new Set<object>();
  let fuse = Number.POSITIVE_INFINITY;
  const burn = () => {
    if (--fuse === 0) throw new Error('the device failed');
  };
  const allocate = <T extends object>(create: () => T): T => {
    burn();
    const handle = create();
    allocated.add(handle);
    return handle;
  };
  const observed: Device = {
    ...device,
    get allocatedBytes() {
      return device.allocatedBytes;
    },
    createBlock: (bytes, partOffsets) => allocate(() => device.createBlock(bytes, partOffsets)),
    createTensor: (rows, cols) => allocate(() => device.createTensor(rows, cols)),
    free(handle) {
      if (!allocated.delete(handle)) throw new Error('a block was freed twice');
      device.free(handle);
    },
    copyBlock(from, to) {
      burn();
      if (!allocated.has(from) || !allocated.has(to)) throw new Error('a freed block was copied');
      device.copyBlock(from, to);
    },
  };
  return {
    device: observed,
    allocated,
    failAfter(allocations: number) {
      fuse = allocations;
    },
  };
}

/** What the token at each position writes: keys, then values. It depends on the salt and on all tokens before. */
function tokenValues(salt: string, ids: readonly number[]): number[][] {
  let hash = 0x811c9dc5;
  const mix = (x: number) => {
    hash = Math.imul(hash ^ x, 0x01000193);
    hash ^= hash >>> 15;
  };
  for (const char of salt) mix(char.charCodeAt(0) + 1000);
  // f16 holds integers up to 2048 exactly.
  return ids.map(id => {
    mix(id + 1);
    return Array.from({ length: 2 * DIMS }, (_, i) => (Math.imul(hash, 2 * i + 1) >>> 9) % 2048);
  });
}

/** What a layer makes of the values of tokens, so that layers differ. */
const layerValue = (value: number, layer: number): number => (value + 7 * layer) % 2048;

const scratch = createJsDevice();

/** Adds tokens as a pass of the model does, in one chunk. */
export function appendTokens(device: Device, sequence: Sequence, tokens: readonly number[]): SequenceRun[] {
  const runs = sequence.plan(tokens.length);
  const values = tokenValues(sequence.salt, [...sequence.ids, ...tokens]).slice(sequence.length);
  const { view, exactView } = sequence;
  for (const layer of view.shape.layers.keys()) {
    const [k, v] = [0, DIMS].map(first => {
      const tensor = scratch.createTensor(tokens.length, DIMS);
      const rows = values.flatMap(row => row.slice(first, first + DIMS)).map(value => layerValue(value, layer));
      scratch.writeRows(tensor, 0, Float32Array.from(rows));
      return tensor;
    });
    for (const run of runs) {
      const page = run.sealedPages - 1;
      for (const one of exactView ? [view, exactView] : [view])
        if (run.sealsPage) device.seal(layer, [{ view: one, page }]);
      device.append(layer, k, v, [{ ...run, view }]);
    }
  }
  sequence.commit(tokens.length, tokens);
  return runs;
}

/** The same in chunks as large as the sequence takes. */
export function appendAll(device: Device, sequence: Sequence, tokens: readonly number[]): void {
  for (let done = 0; done < tokens.length; ) {
    const count = Math.min(tokens.length - done, sequence.maxChunk);
    if (count === 0) throw new Error('the context is full');
    appendTokens(device, sequence, tokens.slice(done, done + count));
    done += count;
  }
}

const bytesOf = (block: Block) => (block as Block & { data: Uint8Array<ArrayBuffer> }).data;

/** Keys and values of a layer at one index of a block of the tail, or of the sinks. */
function f16Row(block: Block, tokens: number, index: number, layer: number): number[] {
  const words = new Uint16Array(bytesOf(block).buffer);
  return [0, 1].flatMap(side =>
    Array.from({ length: DIMS }, (_, j) => fromF16(words[((2 * layer + side) * tokens + index) * DIMS + j])),
  );
}

/** Expects that a sequence holds these tokens, and reads exactly what they would have written. */
export function expectContents({ view, exactView, salt, ids, length }: Sequence, tokens: readonly number[]): void {
  for (const [i, page] of (exactView?.leaves ?? []).entries()) expect(bytesOf(page)).toEqual(bytesOf(view.leaves[i]));
  if (length !== tokens.length || ids.some((id, n) => id !== tokens[n])) expect(ids).toEqual(tokens);
  const { sinks, tailTokens, layers } = view.shape;
  const expected = tokenValues(salt, tokens);
  const sealedEnd = (view.firstLeaf + view.leaves.length) * PAGE;
  const wrongIn = (layer: number): number[] => {
    const { keyOffset, valueOffset, window } = layers[layer];
    const tailRow = (n: number): number[] => {
      const index = n % tailTokens;
      const block = view.tail[Math.floor(index / TAIL_BLOCK)];
      return block ? f16Row(block, TAIL_BLOCK, index % TAIL_BLOCK, layer) : [];
    };
    const read = (n: number): number[] => {
      if (n < sinks) return f16Row(view.sinkBlock, sinks, n, layer);
      if (n >= sealedEnd) return tailRow(n);
      if (n < view.firstLeaf * PAGE) return [];
      const page = pageBlock(view, layer, Math.floor(n / PAGE));
      if (!page) return [];
      return [keyOffset, valueOffset].flatMap(offset => [
        ...new Float32Array(bytesOf(page).buffer, offset + 4 * DIMS * (n % PAGE), DIMS),
      ]);
    };
    const isWritten = (n: number, row: number[]) =>
      row.length > 0 && row.every((x, i) => x === layerValue(expected[n][i], layer));
    return tokens.flatMap((_, n) => {
      // Sinks stay when the pages around them are dropped. Until their own page is sealed, they are in the tail, too.
      const isVisible = n < sinks || n >= Math.max(view.firstLeaf * PAGE, firstVisible(sealedEnd, window));
      const isRight = isWritten(n, read(n)) && (n < sealedEnd || isWritten(n, tailRow(n)));
      return isVisible && !isRight ? [n] : [];
    });
  };
  const wrong = [...layers.keys()].flatMap(wrongIn);
  // `expect` takes longer than all of the above.
  if (wrong.length > 0) expect(wrong, 'positions with the values of another text').toEqual([]);
}
