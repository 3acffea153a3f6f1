import { describe, expect, it } from 'vitest';
import type { Device, Tensor } from '../kernel/device.ts';
import { createJsDevice } from '../kernel/js/device.ts';
import { createSequence } from './create-sequence.ts';
import { type LayerCodecs, leafLayout } from './leaf.ts';
import type { Sequence } from './sequence.ts';

const P = 4;
const codec = { pageBytes: 16, squaredError: () => 0 };

/** A sequence that counts the rows that it reads from the device. */
function create(options: { context?: number; overflow?: 'slide' } = {}) {
  const device = createJsDevice();
  const reads: number[] = [];
  const readRows = (tensor: Tensor, row: number) => {
    reads.push(row);
    return device.readRows(tensor, row);
  };
  const sequence = createSequence({
    device: { ...device, readRows },
    shape: { headDim: 8, kvHeads: 1, pageTokens: P, sinks: 0 },
    leaf: leafLayout([{ keys: codec, values: codec } as unknown as LayerCodecs]),
    recent: 0,
    context: 2000,
    ...options,
  });
  return { device, sequence, reads };
}

/** Adds tokens one by one; sealing a page writes its errors, `error` + page and 0. */
function append(sequence: Sequence, device: Device, count: number, error = 0): void {
  const { view } = sequence;
  for (let i = 0; i < count; i++) {
    for (const { sealsPage, sealedPages: pages } of sequence.plan(1)) {
      if (sealsPage)
        device.writeRows(view.errors!, (pages - 1) % view.errors!.rows, Float32Array.of(error + pages - 1, 0));
    }
    sequence.commit(1);
  }
}

const errorsOf = async (sequence: Sequence) =>
  [...(await sequence.readErrors())].map(([page, [key]]) => [page, key]).sort(([a], [b]) => a - b);

describe('the errors of pages', () => {
  it('are those of the sealed pages, and each is read from the device once', async () => {
    const { device, sequence, reads } = create();
    expect(await errorsOf(sequence)).toEqual([]);
    append(sequence, device, 2 * P + 1, 100);
    expect(await errorsOf(sequence)).toEqual([
      [0, 100],
      [1, 101],
    ]);
    append(sequence, device, P, 100);
    expect(await errorsOf(sequence)).toHaveLength(3);
    expect(reads).toEqual([0, 1, 2]);
  });

  it('of cropped pages are forgotten, and read again once they are sealed again', async () => {
    const { device, sequence } = create();
    append(sequence, device, 3 * P + 1, 100);
    await sequence.readErrors();
    sequence.crop(P);
    expect(await errorsOf(sequence)).toEqual([[0, 100]]);
    append(sequence, device, P + 1, 200);
    expect(await errorsOf(sequence)).toEqual([
      [0, 100],
      [1, 201],
    ]);
  });

  it('of dropped pages are forgotten', async () => {
    const { device, sequence } = create({ context: 10, overflow: 'slide' });
    append(sequence, device, 5 * P, 100);
    expect((await errorsOf(sequence)).map(([page]) => page)).toEqual([3]);
  });

  it('of old pages are missing if later ones overwrote them before they were read', async () => {
    const { device, sequence } = create();
    const { rows } = sequence.view.errors!;
    append(sequence, device, (rows + 2) * P + 1);
    const pages = (await errorsOf(sequence)).map(([page]) => page);
    expect([pages.length, pages[0], pages[rows - 1]]).toEqual([rows, 2, rows + 1]);
  });

  it('stay with the leaf: a fork knows what the original has read', async () => {
    const { device, sequence, reads } = create();
    append(sequence, device, 2 * P + 1, 100);
    await sequence.readErrors();
    const fork = sequence.fork();
    append(fork, device, P, 200);
    expect(await errorsOf(fork)).toEqual([
      [0, 100],
      [1, 101],
      [2, 202],
    ]);
    expect((await errorsOf(sequence)).length).toBe(2);
    expect(reads).toEqual([0, 1, 2]);
  });

  it('of pages that were planned but never sealed are not read', async () => {
    const { device, sequence, reads } = create();
    append(sequence, device, P);
    sequence.plan(2 * P + 1);
    sequence.crop(P);
    expect([await errorsOf(sequence), reads]).toEqual([[], []]);
  });

  it('take memory that counts, and that is freed', () => {
    const { device, sequence } = create();
    expect(device.allocatedBytes).toBe(sequence.bytes);
    sequence.dispose();
    expect(device.allocatedBytes).toBe(0);
  });
});
