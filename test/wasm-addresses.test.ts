/**
 * A WebAssembly memory has up to 4 GiB, and addresses past 2 GiB are negative when read as signed. The same work is done low in a
 * memory and past 2 GiB, and across the border: the bits must be the same.
 */
import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { zoo } from '../src/codec/zoo.ts';
import type { Device } from '../src/kernel/device.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import type { Heap, Limits } from '../src/kernel/wasm/memory.ts';
import { runAttention, runSmallOperations, VARIANTS } from './attention.ts';
import { randomWeights } from './quantize.ts';
import { seeded } from './random.ts';

const BORDER = 2 ** 31;

/** Every device's memory begins with so many bytes that nobody uses; blocks are those that were handed out. */
const placed = vi.hoisted(() => ({ skip: 0, blocks: [] as { address: number; bytes: number }[] }));
vi.mock('../src/kernel/wasm/memory.ts', async original => {
  const actual = await original<typeof import('../src/kernel/wasm/memory.ts')>();
  return {
    ...actual,
    openMemory(limits: Limits): Heap {
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
/** Six pages, so that there are splits to merge; few rows and many. */
const TOKENS = [150, 3, 40];

/** The long suite puts every block of every codec across the border; the short one only the large ones of one codec. */
const long = process.env.KVASIR_LONG === '1';
const codecs = long ? [...zoo, ...VARIANTS] : zoo;

async function openAt(skip: number): Promise<Device> {
  placed.skip = skip;
  placed.blocks = [];
  return createWasmDevice({ headDim: 64, heads: 6, kvHeads: 2, pageTokens: 32, threads: 2 });
}

/** Of all that comes out: comparing arrays of this size number by number takes longer than making them. */
function hash(arrays: readonly (Float32Array | Uint8Array)[]): string {
  const sum = createHash('sha256');
  for (const { buffer, byteOffset, byteLength } of arrays) sum.update(new Uint8Array(buffer, byteOffset, byteLength));
  return sum.digest('hex');
}

async function attention(device: Device, spec: string): Promise<string> {
  const { outputs, leaves } = await runAttention(device, { spec, pageTokens: 32 }, TOKENS);
  return hash([...outputs, ...leaves]);
}

async function products(device: Device) {
  const bytes = randomWeights('Q4_1', 64 * 64, 0.1, seeded(1));
  const weights = await device.loadWeights('Q4_1', 64, 64, async into => into.set(bytes));
  const out = device.tensor(5, 64);
  device.embed(weights, [5, 6, 7, 8, 63], out);
  device.project(out, 5, [{ weights, out, add: true }]);
  device.project(out, 1, [{ weights, out, add: true }]);
  return Promise.all([0, 1, 4].map(row => device.read(out, row)));
}

describe('past 2 GiB', () => {
  let low: Device;
  let high: Device;
  beforeAll(async () => {
    low = await openAt(0);
    high = await openAt(BORDER);
    expect(Math.min(...placed.blocks.map(({ address }) => address))).toBeGreaterThan(BORDER);
  });
  afterAll(async () => {
    await Promise.all([low.dispose(), high.dispose()]);
  });

  it('matrices and small operations give the same bits', async () => {
    expect(await products(high)).toEqual(await products(low));
    expect(await runSmallOperations(high)).toEqual(await runSmallOperations(low));
  });

  it.each(codecs)('%s seals and attends with the same bits', async spec => {
    expect(await attention(high, spec)).toBe(await attention(low, spec));
  });
});

it.each(long ? codecs : ['mead2'])(
  '%s gives the same bits whichever of its blocks lies across the border',
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
    const blocks = long ? all : all.filter(isLarge);
    expect(blocks.length).toBeGreaterThan(5);
    for (const { address, bytes } of blocks) {
      const skip = BORDER - 64 * Math.round((address + bytes / 2) / 64);
      expect(await run(skip), `${bytes} bytes at ${address}`).toBe(low);
    }
  },
  300_000,
);
