/** Memory of the wasm device: refused reservations, failed growth, and caches that are rejected before loading. */
import { execFile } from 'node:child_process';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { createCodec, placeholderLearned } from '../../src/codec/kv.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { parseSpec } from '../../src/codec/spec.ts';
import { CapacityError, loadModel } from '../../src/index.ts';
import { createWasmDevice, type WasmOptions } from '../../src/kernel/wasm/device.ts';
import { Memories } from '../../src/kernel/wasm/memories.ts';
import { openMemory } from '../../src/kernel/wasm/memory.ts';
import { createPageRopeTables } from '../../src/kernel/wasm/page-rope.ts';
import type { Pool } from '../../src/kernel/wasm/pool.ts';
import { runAttention } from '../support/attention.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { seeded } from '../support/random.ts';
import { tinyModel } from '../support/tiny-model.ts';

const MIB = 2 ** 20;
const PAGE = 65536;

afterEach(() => {
  vi.restoreAllMocks();
});

/** Makes the JavaScript engine refuse memories of more than `maxPages` pages. */
function limitMemories(maxPages: number): void {
  const { Memory } = WebAssembly;
  vi.spyOn(WebAssembly, 'Memory').mockImplementation(function memory(descriptor: WebAssembly.MemoryDescriptor) {
    if (descriptor.maximum! > maxPages) throw new RangeError('could not allocate memory');
    return new Memory(descriptor);
  } as never);
}

const open = (options: Partial<WasmOptions> = {}) =>
  createWasmDevice({ headDim: 64, heads: 6, kvHeads: 2, pageTokens: 128, threads: 2, ...options });

describe.each([true, false])('a memory (shared: %s)', shared => {
  it('reserves half as much until the engine allows it', () => {
    limitMemories(10000);
    const heap = openMemory({ maxPages: 65536, shared });
    expect(heap.capacity).toBe(8192 * PAGE);
    expect(heap.reserve(511 * MIB)).toBe(true);
    expect(heap.reserve(512 * MIB)).toBe(false);
  });

  it('throws a CapacityError if the engine allows no size', () => {
    limitMemories(1000);
    expect(() => openMemory({ maxPages: 65536, shared })).toThrow(CapacityError);
    expect(() => openMemory({ maxPages: 65536, shared })).toThrow(
      /refuses a memory of 4.00 GiB, and any smaller one down to 64.00 MiB/,
    );
  });

  it('throws a CapacityError if it cannot grow, and stays usable', () => {
    const heap = openMemory({ maxPages: 64, shared });
    const first = heap.alloc(2 * MIB);
    const { used } = heap;
    for (const bytes of [3 * MIB, 2 ** 33, Number.MAX_SAFE_INTEGER])
      expect(() => heap.alloc(bytes)).toThrow(/out of memory: it holds 2.00 MiB and cannot allocate .* more/);
    expect(heap.used).toBe(used);
    const second = heap.alloc(MIB);
    expect(second).toBeGreaterThanOrEqual(first + 2 * MIB);
    heap.free(first, 2 * MIB);
    expect(heap.alloc(2 * MIB)).toBe(first);
  });

  it('zeroed allocations are zero, in memory that was used before and in new memory', () => {
    const heap = openMemory({ maxPages: 64, shared });
    const bytesOf = (address: number, bytes: number) => new Uint8Array(heap.memory.buffer, address, bytes);
    const dirty = heap.alloc(1000);
    bytesOf(dirty, 1000).fill(7);
    heap.free(dirty, 1000);
    // It begins in freed memory and ends in new memory.
    const zeroed = heap.allocZeroed(5000);
    expect(zeroed).toBe(dirty);
    expect(bytesOf(zeroed, 5000).every(byte => byte === 0)).toBe(true);
    bytesOf(zeroed, 5000).fill(7);
    const next = heap.allocZeroed(1000);
    expect(bytesOf(next, 1000).every(byte => byte === 0)).toBe(true);
    heap.free(zeroed, 5000);
    expect(bytesOf(heap.allocZeroed(100), 100).every(byte => byte === 0)).toBe(true);
  });

  it('allocations never overlap, and freed memory is reused', () => {
    const heap = openMemory({ maxPages: 64, shared });
    const random = seeded(7);
    const held: { address: number; bytes: number }[] = [];
    for (let i = 0; i < 2000; i++) {
      if (random.next() < 0.5) {
        const bytes = random.below(30000);
        const address = heap.alloc(bytes);
        const clash = held.some(other => address < other.address + other.bytes && other.address < address + bytes);
        expect([clash, address % 64]).toEqual([false, 0]);
        held.push({ address, bytes });
      } else if (held.length > 0) {
        const [{ address, bytes }] = held.splice(random.below(held.length), 1);
        heap.free(address, bytes);
      }
    }
    for (const { address, bytes } of held) heap.free(address, bytes);
    expect(heap.used).toBe(0);
    expect(heap.alloc(3.9 * MIB)).toBe(64);
  });

  it('throws a CapacityError if the engine refuses to grow it', () => {
    const heap = openMemory({ maxPages: 64, shared });
    heap.memory.grow = () => {
      throw new RangeError('Unable to grow instance memory');
    };
    expect(() => heap.alloc(2 * MIB)).toThrow(CapacityError);
    expect(heap.alloc(1000)).toBeGreaterThan(0);
  });
});

describe('after a failed growth, no memory is handed out twice', () => {
  const heap = () => openMemory({ maxPages: 64, shared: false });

  it('a scratch buffer', () => {
    const first = heap();
    const memories = new Memories(first, { load() {} } as unknown as Pool, new Uint8Array(), {
      maxPages: 64,
      shared: false,
    });
    const old = memories.scratch('states', MIB);
    expect(() => memories.scratch('states', 8 * MIB)).toThrow(CapacityError);
    expect(first.alloc(MIB)).toBe(old);
    expect(memories.scratch('states', MIB)).not.toBe(old);
  });

  it('a page rope table', () => {
    const first = heap();
    const tables = createPageRopeTables(first, 64, 128);
    const frequencies = new Float64Array(32);
    const old = tables.addressOf(frequencies, 0, 1);
    expect(() => tables.addressOf(frequencies, 0, 10000)).toThrow(CapacityError);
    expect(first.alloc(64 * 512)).toBe(old);
    expect(tables.addressOf(frequencies, 0, 1)).not.toBe(old);
  });
});

it('codecs of further layers take memory for their tables only, whatever the number of threads', async () => {
  const shape = { headDim: 64, kvHeads: 2, pageTokens: 128, ropeFrequencies: createRopeFrequencies(64) };
  const spec = parseSpec('mead2');
  const growth = async (threads: number) => {
    const device = await open({ threads });
    const bytes: number[] = [];
    for (let layer = 0; layer < 2; layer++) {
      const { keys, values } = createCodec(spec, shape, placeholderLearned(spec, shape));
      const before = device.allocatedBytes;
      await device.loadCodecs!([{ keys, values, part: 0, keyOffset: 0, valueOffset: 0 }]);
      bytes.push(device.allocatedBytes - before);
    }
    await device.dispose();
    return bytes;
  };
  const [one, four] = [await growth(1), await growth(4)];
  expect(four[0]).toBeGreaterThan(one[0]);
  expect(four[1]).toBe(one[1]);
  expect(one[1]).toBeGreaterThan(0);
});

it.each([1, 2])('a full device keeps working with what it has, on %i threads', async threads => {
  const device = await open({ maxPages: 256, threads });
  const blocks = [device.createBlock(4 * MIB)];
  expect(() => {
    for (;;) blocks.push(device.createBlock(MIB));
  }).toThrow(CapacityError);
  expect(() => device.createTensor(4096, 4096)).toThrow(CapacityError);
  const before = device.allocatedBytes;
  await expect(runAttention(device, { spec: 'tq4' }, [300])).rejects.toThrow(CapacityError);
  for (const block of blocks) device.free(block);
  expect(device.allocatedBytes).toBeLessThan(before);
  const other = await open({ threads });
  const [found, expected] = [
    await runAttention(device, { spec: 'tq4' }, [300]),
    await runAttention(other, { spec: 'tq4' }, [300]),
  ];
  expect(found.outputs[299]).toEqual(expected.outputs[299]);
  await Promise.all([device.dispose(), other.dispose()]);
});

it('rows that attend in several passes, because their states do not fit, give the same bits', async () => {
  // 8 MiB: states may take 1/32 of it, those of about 80 rows on five pages.
  const devices = [await open({ maxPages: 128 }), await open()];
  const [small, large] = await Promise.all(
    devices.map(device => runAttention(device, { spec: 'tq4+sink0' }, [700, 7])),
  );
  for (const row of [640, 699, 700, 706]) expect(small.outputs[row]).toEqual(large.outputs[row]);
  await Promise.all(devices.map(device => device.dispose()));
});

it('weights do not use the memory reserved for caches', async () => {
  const device = await open({ maxPages: 64 });
  const bytes = 2.5 * MIB;
  expect(device.reserve!(bytes)).toBe(bytes);
  for (let n = 0; n < 4; n++) await device.loadWeights('F32', 512, 512, async into => void into.fill(1));
  expect(device.createBlock(bytes).bytes).toBe(bytes);
  await device.dispose();
});

describe('a cache that one memory cannot hold', () => {
  const model = new Blob([writeGguf(tinyModel({ context: 2 ** 26 }))]);
  const load = (context: number, kv = 'f16') =>
    loadModel(model, { device: 'wasm', threads: 1, context, kv, memoryLimit: 2 ** 40 });

  it('is rejected before loading, with a context that fits', async () => {
    const error = await load(2 ** 25).catch(error => error);
    expect(error).toBeInstanceOf(CapacityError);
    expect(error.message).toMatch(
      /^The wasm device can hold 3\.\d\d GiB in addition to the weights; this needs 8\.\d\d GiB/,
    );
    const [, tokens] = error.message.match(/a context of ([\d,]+) fits; kv: 'tq4' fits at this context\.$/);
    await using fits = await load(Number(tokens.replaceAll(',', '')));
    expect(fits.context).toBeGreaterThan(10_000_000);
    await using packed = await load(2 ** 25, 'tq4');
    expect(packed.context).toBe(2 ** 25);
  });

  it('is rejected by the actual size if the engine allows only small memories', async () => {
    limitMemories(16384);
    await expect(load(2 ** 22)).rejects.toThrow(/^The wasm device can hold 8\d\d\.\d\d MiB in addition to the weights/);
  });
});

/** Runs code with openMemory in a process with limited address space. */
async function limited(kibibytes: number, flags: string, code: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-memory-'));
  const memory = fileURLToPath(new URL('../../src/kernel/wasm/memory.ts', import.meta.url));
  await build({ entryPoints: [memory], bundle: true, format: 'esm', outfile: join(folder, 'memory.mjs') });
  await writeFile(join(folder, 'main.mjs'), `import { openMemory } from './memory.mjs';\n${code}`);
  const command = `ulimit -v ${kibibytes} && exec "$0" ${flags} "$1"`;
  const { stdout } = await promisify(execFile)('bash', ['-c', command, process.execPath, join(folder, 'main.mjs')]);
  return stdout;
}

it.skipIf(process.platform !== 'linux')(
  'a process of little address space gets a typed error, or less memory',
  async () => {
    const refused =
      'try { openMemory({ maxPages: 65536, shared: true }) } catch (error) { console.log(error.name, error.message) }';
    expect(await limited(6e6, '', refused)).toMatch(/^CapacityError .*--disable-wasm-trap-handler/);
    const granted = `const heap = openMemory({ maxPages: 65536, shared: true });
    console.log(heap.reserve(3 * 2 ** 30), heap.reserve(2 ** 29), heap.alloc(2 ** 29))`;
    expect(await limited(3e6, '--disable-wasm-trap-handler', granted)).toBe('false true 64\n');
  },
);
