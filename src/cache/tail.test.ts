import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createJsDevice } from '../kernel/js/device.ts';
import { tailBlockTokens, tailCapacity } from '../kernel/visibility.ts';
import { f16BlockBytes, type LayerCodecs, leafLayout } from './leaf.ts';
import { createPool } from './pool.ts';
import { createTail, readTail, tailTokens, writeTail } from './tail.ts';

const { layers } = leafLayout([0, 1].map(() => ({ keys: { pageBytes: 8 }, values: { pageBytes: 8 } }) as LayerCodecs));
const SHAPE = { headDim: 2, kvHeads: 2, pageTokens: 32, sinks: 0, layers };

const sealings = fc.constantFrom(0, 3, 16, 40).map(recent => ({ pageTokens: SHAPE.pageTokens, recent }));

/** A tail with the blocks of some tokens. */
const tails = sealings.chain(sealing =>
  fc.tuple(fc.nat(200), fc.nat(tailCapacity(sealing))).map(([page, count]) => {
    const from = page * SHAPE.pageTokens;
    const device = createJsDevice();
    const tail = createTail(createPool(device), SHAPE, sealing);
    const tokens = { from, to: from + count };
    tail.grow(tokens);
    const shape = { ...SHAPE, tailTokens: tailTokens(sealing) };
    const view = { shape, leaves: [], firstLeaf: 0, tail: tail.blocks, sinkBlock: device.createBlock(0) };
    return { device, sealing, tail, tokens, view };
  }),
);

it('has the bytes of its tokens, in whole blocks', () => {
  fc.assert(
    fc.property(tails, fc.nat(100), ({ tail, tokens: { from, to } }, removed) => {
      const bytesOf = (end: number) =>
        f16BlockBytes(
          SHAPE,
          Math.ceil((end - from) / tailBlockTokens(SHAPE.pageTokens)) * tailBlockTokens(SHAPE.pageTokens),
        );
      expect(tail.bytes).toBe(bytesOf(to));
      const end = Math.max(from, to - removed);
      tail.trim({ from, to: end });
      expect([tail.bytes, tail.bytesFor({ from, to })]).toEqual([bytesOf(end), bytesOf(to) - bytesOf(end)]);
    }),
  );
});

it('in a file is one ring of all tokens, zeros where there is none, and comes back from it', async () => {
  await fc.assert(
    fc.asyncProperty(tails, async ({ device, sealing, tokens, view }) => {
      const capacity = tailCapacity(sealing);
      const file = new Uint8Array(f16BlockBytes(SHAPE, capacity));
      const bytes = 2 * SHAPE.headDim;
      const used = new Set<number>();
      for (let n = tokens.from; n < tokens.to; n++) used.add(n % capacity);
      for (let row = 0; row * bytes < file.length; row++)
        if (used.has(row % capacity)) for (let i = 0; i < bytes; i++) file[row * bytes + i] = 1 + ((row * 7 + i) % 255);
      writeTail(device, view, sealing, tokens, file);
      expect(await readTail(device, view, sealing, tokens)).toEqual(file);
      // What was removed is not written, although its block still has it.
      const fewer = { ...tokens, to: Math.max(tokens.from, tokens.to - 1) };
      const left = await readTail(device, view, sealing, fewer);
      const last = fewer.to % capacity;
      if (tokens.to > tokens.from)
        expect(left.subarray(last * bytes, (last + 1) * bytes)).toEqual(new Uint8Array(bytes));
    }),
  );
});
