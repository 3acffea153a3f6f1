/**
 * A WebAssembly memory has up to 4 GiB, and addresses above 2 GiB are negative as signed integers. The same work low in a
 * memory, above 2 GiB and across the boundary must give the same bits.
 */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { zoo } from '../../src/codec/zoo.ts';
import type { Device } from '../../src/kernel/device.ts';
import { createWasmDevice } from '../../src/kernel/wasm/device.ts';
import type { Heap, MemoryLimits } from '../../src/kernel/wasm/memory.ts';
import { CODEC_VARIANTS, runAttention, runSmallOperations } from '../support/attention.ts';
import { hashOf } from '../support/hash.ts';
import { LONG_CASES, matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';

const BOUNDARY = 2 ** 31;

/** `skip` bytes at the start of every device's memory are unused; `blocks` are the allocated ones. */
const placed = vi.hoisted(() => ({ skip: 0, blocks: [] as { address: number; bytes: number }[] }));
vi.mock('../../src/kernel/wasm/memory.ts', async original => {
  const actual = await original<typeof import('../../src/kernel/wasm/memory.ts')>();
  return {
    ...actual,
    openMemory(limits: MemoryLimits): Heap {
      const heap = actual.openMemory(limits);
      if (placed.skip > 0) heap.alloc(placed.skip);
      const alloc = (bytes: number) => {
        const address = heap.alloc(bytes);
        placed.blocks.push({ address, bytes });
        return address;
      };
      return Object.create(heap, { alloc: { value: alloc } });
    },
  };
});
/** Six pages, so that there are splits to combine; few rows and many. */
const TOKENS = [150, 3, 40];

/** One codec per loop that reads a kind of page. */
const CODECS = [
  ...['f16', 'fp8', 'q8_0', 'q4_0', 'oaken', 'kivi2g32', 'oscar2g32', 'tq4', 'tq3', 'tq2u', 'tq35'],
  ...['vec-d4b8', 'vec-d4b8-own', 'tri8i4/tq2', 'mead2', 'mead2u'],
];
/** `npm run test:long` puts every block of every codec across the boundary; other runs only the large blocks of one codec. */
const codecs = LONG_CASES
  ? [...zoo, ...CODEC_VARIANTS]
  : matrix(CODECS, {
      f16: 'rows of f16',
      oaken: 'outlier lists',
      kivi2g32: 'ranges',
      tq4: '16-entry tables',
      tq2u: 'int8 dot products',
      tq35: 'two bit widths in one vector, QJL residual',
      mead2: 'additive codebooks',
      mead2u: 'a bit width per channel',
    });

async function openAt(skip: number): Promise<Device> {
  placed.skip = skip;
  placed.blocks = [];
  return createWasmDevice({ headDim: 64, heads: 6, kvHeads: 2, pageTokens: 32, threads: 2 });
}

async function attention(device: Device, spec: string): Promise<string> {
  return hashOf(await runAttention(device, { spec, pageTokens: 32 }, TOKENS));
}

async function products(device: Device) {
  const bytes = randomWeights('Q4_1', 64 * 64, 0.1, seeded(1));
  const weights = await device.loadWeights('Q4_1', 64, 64, async into => into.set(bytes));
  const out = device.createTensor(5, 64);
  device.embed(weights, [5, 6, 7, 8, 63], out);
  device.project(out, 5, [{ weights, out, accumulate: true }]);
  device.project(out, 1, [{ weights, out, accumulate: true }]);
  return Promise.all([0, 1, 4].map(row => device.readRows(out, row)));
}

describe('above 2 GiB', () => {
  let low: Device;
  let high: Device;
  beforeAll(async () => {
    low = await openAt(0);
    high = await openAt(BOUNDARY);
    expect(Math.min(...placed.blocks.map(({ address }) => address))).toBeGreaterThan(BOUNDARY);
  });
  afterAll(async () => {
    await Promise.all([low.dispose(), high.dispose()]);
  });

  it('matrices and small operations give the same bits', async () => {
    expect(await products(high)).toEqual(await products(low));
    expect(await runSmallOperations(high)).toEqual(await runSmallOperations(low));
  });

  it.each(codecs)('%s: the same sealed pages and outputs', async spec => {
    expect(await attention(high, spec)).toBe(await attention(low, spec));
  });
});

it.each(LONG_CASES ? codecs : ['mead2'])(
  '%s gives the same bits, whichever block lies across the boundary',
  async spec => {
    const run = async (skip: number) => {
      const device = await openAt(skip);
      const bits = await attention(device, spec);
      await device.dispose();
      return bits;
    };
    const low = await run(0);
    const { blocks: all } = placed;
    const isLarge = ({ bytes }: { bytes: number }, i: number) =>
      bytes >= 8192 && all.findIndex(block => block.bytes === bytes) === i;
    const blocks = LONG_CASES ? all : all.filter(isLarge);
    expect(blocks.length).toBeGreaterThan(5);
    for (const { address, bytes } of blocks) {
      const skip = BOUNDARY - 64 * Math.round((address + bytes / 2) / 64);
      expect(await run(skip), `${bytes} bytes at ${address}`).toBe(low);
    }
  },
  300_000,
);
