import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Block } from '../kernel/device.ts';
import { createJsDevice } from '../kernel/js/device.ts';
import { tailBlockTokens } from '../kernel/visibility.ts';
import { CapacityError } from '../util/errors.ts';
import { createSequence } from './create-sequence.ts';
import { f16BlockBytes, type LayerCodecs, leafLayout } from './leaf.ts';
import { createPool } from './pool.ts';
import type { Sequence, SequenceOptions, SequenceRun } from './sequence.ts';

const P = 4;
const SHAPE = { headDim: 8, kvHeads: 2, pageTokens: P, sinks: 2 };
/** Two layers. A sequence reads nothing of a codec but its page sizes. */
const LEAF = leafLayout(
  [
    [10, 20],
    [30, 40],
  ].map(([key, value]) => ({ keys: { pageBytes: key }, values: { pageBytes: value } }) as LayerCodecs),
);

function create(options: Partial<SequenceOptions> = {}) {
  const device = createJsDevice();
  const sequence = createSequence({ device, shape: SHAPE, leaf: LEAF, recent: 0, context: 100, ...options });
  return { device, sequence };
}

/** Plans and commits, as a pass of the model does. */
function append(sequence: Sequence, count: number): SequenceRun[] {
  const runs = sequence.plan(count);
  sequence.commit(count);
  return runs;
}

/** Appends in chunks as large as the sequence takes. */
function fill(sequence: Sequence, count: number): void {
  for (let left = count; left > 0; ) {
    const chunk = Math.min(left, sequence.maxChunk);
    append(sequence, chunk);
    left -= chunk;
  }
}

const TAIL_BLOCK = tailBlockTokens(P);
const f16Bytes = (tokens: number) => f16BlockBytes({ ...SHAPE, layers: LEAF.layers }, tokens);

describe('a new sequence', () => {
  it('has no tokens, no leaves and no tail, only the sinks', () => {
    const { device, sequence } = create({ recent: 3 });
    expect([sequence.length, sequence.droppedTokens, sequence.leafBytes]).toEqual([0, 0, 0]);
    expect([sequence.view.leaves, sequence.view.firstLeaf]).toEqual([[], 0]);
    // The tail can hold an unfinished page and the recent window before it, in whole blocks.
    expect(sequence.view.shape.tailTokens).toBe(P + 4);
    expect(sequence.view.tail).toEqual(Array((P + 4) / TAIL_BLOCK).fill(undefined));
    expect(sequence.view.sinkBlock.bytes).toBe(f16Bytes(SHAPE.sinks));
    expect(sequence.bytes).toBe(f16Bytes(SHAPE.sinks));
    expect(device.allocatedBytes).toBe(sequence.bytes);
  });

  it('tells the device where each layer starts in its blocks', () => {
    const device = createJsDevice();
    const created: (readonly number[] | undefined)[] = [];
    const createBlock = (bytes: number, partOffsets?: readonly number[]) => {
      created.push(partOffsets);
      return device.createBlock(bytes, partOffsets);
    };
    const { sequence } = create({ device: { ...device, createBlock } });
    append(sequence, P + 1);
    expect(created).toEqual([
      [0, f16Bytes(SHAPE.sinks) / 2],
      [0, f16Bytes(TAIL_BLOCK) / 2],
      [0, f16Bytes(TAIL_BLOCK) / 2],
      LEAF.layers.map(({ keyOffset }) => keyOffset),
    ]);
  });

  it('leaves nothing allocated when the device runs out of memory', () => {
    const device = createJsDevice();
    let blocks = 0;
    const createBlock = (bytes: number): Block => {
      if (++blocks === 4) throw new CapacityError('full');
      return device.createBlock(bytes);
    };
    // The sinks and two blocks of the tail; then a fork, which shares the sinks and copies the blocks.
    const { sequence } = create({ device: { ...device, createBlock } });
    append(sequence, TAIL_BLOCK + 1);
    const { bytes } = sequence;
    expect(() => sequence.fork()).toThrow('full');
    expect(device.allocatedBytes).toBe(bytes);
    sequence.dispose();
    expect(device.allocatedBytes).toBe(0);
  });
});

describe('plan', () => {
  it('keeps rows that read the same sealed pages in one run', () => {
    const { sequence } = create();
    expect(sequence.plan(3)).toEqual([{ row: 0, count: 3, position: 0, sealedPages: 0, sealsPage: false }]);
  });

  it('starts a run at each row that reads one more page from codes, and seals that page before the run', () => {
    const { sequence } = create();
    expect(sequence.plan(10)).toEqual([
      { row: 0, count: 4, position: 0, sealedPages: 0, sealsPage: false },
      { row: 4, count: 4, position: 4, sealedPages: 1, sealsPage: true },
      { row: 8, count: 2, position: 8, sealedPages: 2, sealsPage: true },
    ]);
    expect(sequence.view.leaves).toHaveLength(2);
  });

  it('seals a full page with the token after it, not with its last token', () => {
    const { sequence } = create();
    append(sequence, P);
    expect(sequence.view.leaves).toHaveLength(0);
    expect(append(sequence, 1)).toEqual([{ row: 0, count: 1, position: 4, sealedPages: 1, sealsPage: true }]);
    expect(append(sequence, 1)).toEqual([{ row: 0, count: 1, position: 5, sealedPages: 1, sealsPage: false }]);
    expect(sequence.view.leaves).toHaveLength(1);
  });

  it('keeps the recent window in f16: a page is sealed that many tokens later', () => {
    const { sequence } = create({ recent: 3 });
    expect(sequence.plan(12)).toEqual([
      { row: 0, count: 7, position: 0, sealedPages: 0, sealsPage: false },
      { row: 7, count: 4, position: 7, sealedPages: 1, sealsPage: true },
      { row: 11, count: 1, position: 11, sealedPages: 2, sealsPage: true },
    ]);
  });

  it('of no tokens is no runs', () => {
    expect(create().sequence.plan(0)).toEqual([]);
  });

  it('does not count tokens before they are committed', () => {
    const { sequence } = create();
    sequence.plan(10);
    expect(sequence.length).toBe(0);
    sequence.commit(10);
    expect(sequence.length).toBe(10);
  });

  it('replaces a plan that was not committed, and seals its pages again', () => {
    const { device, sequence } = create();
    append(sequence, P);
    const first = sequence.plan(P + 1);
    expect(sequence.bytesFor(1)).toBe(LEAF.bytes);
    expect(sequence.plan(1)).toEqual([{ row: 0, count: 1, position: P, sealedPages: 1, sealsPage: true }]);
    expect(sequence.view.leaves).toHaveLength(1);
    expect(sequence.plan(P + 1)).toEqual(first);
    expect(device.allocatedBytes).toBe(sequence.bytes);
    expect(sequence.crop(99)).toBe(P);
    expect(sequence.view.leaves).toEqual([]);
  });

  it('grows its tail by blocks, and frees those whose tokens are sealed', () => {
    const { sequence } = create();
    const places = () => sequence.view.tail.map(block => block !== undefined);
    append(sequence, 1);
    const [first] = sequence.view.tail;
    expect(places()).toEqual([true, false]);
    expect([sequence.bytesFor(1), sequence.bytesFor(2), sequence.bytesFor(3)]).toEqual(
      [0, 1, 1].map(n => n * f16Bytes(TAIL_BLOCK)),
    );
    append(sequence, P - 1);
    expect(places()).toEqual([true, true]);
    // The next token seals the page, and then takes the place of its first.
    expect(sequence.bytesFor(1)).toBe(LEAF.bytes);
    append(sequence, 1);
    expect(places()).toEqual([true, false]);
    expect(sequence.view.tail[0]).toBe(first);
    expect(sequence.crop(P)).toBe(P);
    expect(places()).toEqual([false, false]);
  });

  it('frees what it has allocated if it fails', () => {
    const device = createJsDevice();
    const pool = createPool(device, { capacity: f16Bytes(SHAPE.sinks + TAIL_BLOCK) });
    const { sequence } = create({ device, pool });
    expect(() => sequence.plan(P)).toThrow(CapacityError);
    expect(pool.used).toBe(f16Bytes(SHAPE.sinks));
    append(sequence, 1);
    expect(sequence.bytes).toBe(f16Bytes(SHAPE.sinks + TAIL_BLOCK));
  });
});

describe('a full context', () => {
  it('rejects more tokens with a message that says what to do, and does not change', () => {
    const { sequence } = create({ context: 10 });
    append(sequence, 8);
    expect(sequence.maxChunk).toBe(2);
    expect(() => sequence.plan(3)).toThrow(CapacityError);
    expect(() => sequence.plan(3)).toThrow(/8 tokens and 3 more exceed the context of 10\..*overflow: 'slide'/);
    expect([sequence.length, sequence.view.leaves.length]).toEqual([8, 1]);
    append(sequence, 2);
    expect(sequence.maxChunk).toBe(0);
  });
});

describe('sliding', () => {
  const slide = { context: 10, overflow: 'slide' } as const;

  it('drops the oldest page when the context is full, and frees it', () => {
    const { device, sequence } = create(slide);
    append(sequence, 10);
    const [oldest, next] = sequence.view.leaves;
    const before = device.allocatedBytes;
    append(sequence, 1);
    expect(sequence.view.leaves).not.toContain(oldest);
    expect(sequence.view.leaves[0]).toBe(next);
    expect([sequence.view.firstLeaf, sequence.droppedTokens, sequence.length]).toEqual([1, P, 11]);
    expect(device.allocatedBytes).toBe(before - LEAF.bytes + f16Bytes(TAIL_BLOCK));
  });

  it('ends a chunk where the next page is dropped', () => {
    const { sequence } = create(slide);
    expect(sequence.maxChunk).toBe(10);
    append(sequence, 10);
    expect(sequence.maxChunk).toBe(P);
    append(sequence, 1);
    expect(sequence.maxChunk).toBe(P - 1);
    append(sequence, P - 1);
    expect(sequence.maxChunk).toBe(P);
  });

  it('sees the same leaves however the tokens were divided into chunks', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 9 }), { maxLength: 20 }), chunks => {
        const [divided, whole] = [create(slide).sequence, create(slide).sequence];
        for (const count of chunks) fill(divided, count);
        fill(whole, divided.length);
        expect(divided.view.firstLeaf).toBe(whole.view.firstLeaf);
        expect(divided.view.leaves.length).toBe(whole.view.leaves.length);
      }),
    );
  });

  it('rejects a chunk that is larger than the context, and does not change', () => {
    const { sequence } = create(slide);
    append(sequence, 10);
    expect(() => sequence.plan(11)).toThrow(CapacityError);
    expect([sequence.droppedTokens, sequence.view.leaves.length]).toEqual([0, 2]);
  });

  it('needs a context larger than the tail', () => {
    expect(() => create({ context: P + 3, recent: 3, overflow: 'slide' })).toThrow(CapacityError);
    expect(() => create({ context: P + 4, recent: 3, overflow: 'slide' })).not.toThrow();
  });
});

describe('crop', () => {
  it('to the length or more changes nothing', () => {
    const { sequence } = create();
    append(sequence, 10);
    const { leaves, tail } = sequence.view;
    expect([sequence.crop(10), sequence.crop(99)]).toEqual([10, 10]);
    expect([sequence.view.leaves, sequence.view.tail]).toEqual([leaves, tail]);
  });

  it('within the tail keeps exactly that many tokens', () => {
    const { sequence } = create();
    append(sequence, 11);
    expect(sequence.crop(9)).toBe(9);
    expect(sequence.view.leaves).toHaveLength(2);
    expect(append(sequence, 1)).toEqual([{ row: 0, count: 1, position: 9, sealedPages: 2, sealsPage: false }]);
  });

  it('into a sealed page goes back to its first token, since its f16 values are gone', () => {
    const { device, sequence } = create();
    append(sequence, 11);
    expect(sequence.crop(7)).toBe(4);
    expect(sequence.view.leaves).toHaveLength(1);
    expect(device.allocatedBytes).toBe(sequence.bytes);
  });

  it('into a sealed page with a recent window starts over: the window before the page is gone, too', () => {
    const { sequence } = create({ recent: 3 });
    append(sequence, 12);
    expect(sequence.crop(11)).toBe(11);
    expect(sequence.crop(10)).toBe(0);
    expect(sequence.view.leaves).toEqual([]);
  });

  it('before a page that sliding has dropped starts over', () => {
    const { sequence } = create({ context: 10, overflow: 'slide' });
    fill(sequence, 19);
    expect(sequence.droppedTokens).toBe(12);
    expect(sequence.crop(18)).toBe(0);
    expect([sequence.droppedTokens, sequence.view.leaves.length]).toEqual([0, 0]);
  });

  it('to nothing frees all leaves and lets the sequence begin again', () => {
    const { sequence } = create();
    append(sequence, 30);
    expect(sequence.crop(0)).toBe(0);
    expect([sequence.length, sequence.leafBytes]).toEqual([0, 0]);
    expect(append(sequence, 5).map(run => run.sealsPage)).toEqual([false, true]);
  });
});

it('dispose frees every block; a second call does nothing', () => {
  const { device, sequence } = create();
  append(sequence, 30);
  sequence.dispose();
  sequence.dispose();
  expect([device.allocatedBytes, sequence.bytes, sequence.length]).toEqual([0, 0, 0]);
});

describe('any series of appends and crops', () => {
  const options = fc.record({
    recent: fc.constantFrom(0, 1, 3, 4, 6),
    context: fc.integer({ min: 11, max: 40 }),
    overflow: fc.constantFrom('error' as const, 'slide' as const),
  });
  const actions = fc.array(
    fc.oneof(fc.record({ append: fc.integer({ min: 1, max: 12 }) }), fc.record({ crop: fc.nat(60) })),
    { maxLength: 30 },
  );

  it('agrees with the visibility rule, token by token', () => {
    fc.assert(
      fc.property(options, actions, ({ recent, context, overflow }, list) => {
        const { device, sequence } = create({ recent, context, overflow });
        const { view } = sequence;
        /** Pages that the query at position t reads from codes. */
        const sealedAt = (t: number) => Math.max(0, Math.floor((t - recent) / P));
        /** Pages that sliding has dropped once there are n tokens. */
        const droppedAt = (n: number) => (overflow === 'slide' ? Math.max(0, Math.ceil((n - context) / P)) : 0);
        let length = 0;
        let sealed = 0;
        for (const action of list) {
          if ('append' in action) {
            const count = Math.min(action.append, sequence.maxChunk);
            const rows = append(sequence, count).flatMap(run =>
              Array.from({ length: run.count }, (_, i) => ({
                ...run,
                row: run.row + i,
                position: run.position + i,
                i,
              })),
            );
            expect(rows.map(({ row }) => row)).toEqual(Array.from({ length: count }, (_, i) => i));
            for (const { row, position, sealedPages, sealsPage, i } of rows) {
              expect(position).toBe(length + row);
              expect(sealedPages).toBe(sealedAt(position));
              // Each page is sealed once, before the first row that reads it.
              if (i === 0) expect(sealsPage).toBe(sealedPages > sealed);
              expect(sealedPages - sealed).toBeLessThanOrEqual(1);
              sealed = Math.max(sealed, sealedPages);
            }
            length += count;
          } else {
            // The sequence can continue from n if n tokens would have sealed and dropped the same pages, with their tail
            // still there; or from a page's end without a recent window, which needs no tail.
            const canResume = (n: number) =>
              n === 0 || (droppedAt(n) === view.firstLeaf && (sealedAt(n) === sealed || (recent === 0 && n % P === 0)));
            let expected = Math.min(action.crop, length);
            while (expected < length && !canResume(expected)) expected--;
            expect(sequence.crop(action.crop)).toBe(expected);
            if (expected < length) sealed = sealedAt(expected);
            length = expected;
          }
          expect(sequence.length).toBe(length);
          expect(view.firstLeaf).toBe(droppedAt(length));
          expect(view.firstLeaf + view.leaves.length).toBe(sealed);
          expect(sequence.leafBytes).toBe(view.leaves.length * LEAF.bytes);
          // The tail has the blocks of the tokens that are not sealed, and no others.
          const unsealed = Array.from({ length: length - sealed * P }, (_, i) => sealed * P + i);
          const places = new Set(unsealed.map(n => Math.floor((n % view.shape.tailTokens) / TAIL_BLOCK)));
          expect(view.tail.flatMap((block, place) => (block ? [place] : []))).toEqual([...places].sort());
          expect(sequence.privateBytes).toBe(places.size * f16Bytes(TAIL_BLOCK));
          expect(device.allocatedBytes).toBe(sequence.bytes);
        }
      }),
      { numRuns: 300 },
    );
  });
});
