/** Sinks are read in f16, never from codes: what they hold must not show in the codes of the tokens beside them. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createCodec } from '../src/codec/kv.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import type { Device } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { firstCodedRow } from '../src/kernel/visibility.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import { createWebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { runAttention } from './attention.ts';
import { describeGpu } from './webgpu.ts';

const SHAPE = { headDim: 64, heads: 2, kvHeads: 2, pageTokens: 32 };
/** One of every kind of page. */
const SPECS = [
  ...['f16', 'fp8', 'q8_0', 'q4_0', 'tq4-nc', 'tq2u', 'tq35', 'kivi2g32', 'kivi2g16-token/kivi2g16-channel'],
  ...['oscar2g32', 'oscar2g32-xh', 'oaken', 'vec-d4b8', 'tri8i4/tq2', 'mead2', 'mead2u'],
];
/** Share of sealed bytes that may fall on the other side of a tie; those of a row that is copied count as often. */
const TIES = 5e-3;

describe('the first group of a page', () => {
  it.each(['kivi2g32', 'oscar2g32'])('%s: keys come back as if the sinks were like any other token', spec => {
    const codec = createCodec(spec, { headDim: 64 });
    const errorWith = (sinkScale: number) => {
      const keys = normals(createRandom(3), 128 * 64).map((x, i) => (i < 4 * 64 ? sinkScale * x : x));
      const decoded = codec.decode(codec.encode(keys, keys)).keys;
      let error = 0;
      for (let i = 4 * 64; i < 32 * 64; i++) error += (keys[i] - decoded[i]) ** 2;
      return error;
    };
    expect(errorWith(20) / errorWith(1)).toBeLessThan(1.01);
  });
});

describe('rows that are coded', () => {
  it('start behind the sinks, wherever these end', () => {
    const first = (sinks: number) => [0, 1, 2].map(page => firstCodedRow({ sinks, pageTokens: 16 }, page));
    expect(first(0)).toEqual([0, 0, 0]);
    expect(first(7)).toEqual([7, 0, 0]);
    expect(first(20)).toEqual([15, 4, 0]);
    expect(first(32)).toEqual([15, 15, 0]);
  });
});

const open: Device[] = [];
afterAll(() => Promise.all(open.map(device => device.dispose())));

async function sealFirstPage(device: Device, spec: string, sinkScale: number): Promise<Uint8Array> {
  const { leaves } = await runAttention(device, { ...SHAPE, spec }, [SHAPE.pageTokens + 1], { most: 0, sinkScale });
  return leaves[0];
}

const js = createJsDevice();
const expected = new Map<string, Promise<Uint8Array>>();
/** The page as js seals it. */
function expectedPage(spec: string): Promise<Uint8Array> {
  const page = expected.get(spec) ?? sealFirstPage(js, spec, 1);
  expected.set(spec, page);
  return page;
}

function keepsSinksOut(create: () => Promise<Device>): void {
  let device: Device;
  beforeAll(async () => {
    device = await create();
    open.push(device);
  });

  it.each(SPECS)('%s: large sinks leave the page as it is, and it is the page of js', async spec => {
    for (const sinks of [0, 4, 7]) {
      const name = `${spec}+sink${sinks}`;
      const page = await sealFirstPage(device, name, 1);
      const right = await expectedPage(name);
      expect(page.filter((byte, i) => byte !== right[i]).length / page.length, name).toBeLessThanOrEqual(TIES);
      if (sinks > 0) expect(await sealFirstPage(device, name, 20), name).toEqual(page);
    }
  });
}

describe('js', () => keepsSinksOut(async () => js));
describe('wasm', () => keepsSinksOut(() => createWasmDevice({ ...SHAPE, threads: 2 })));
describeGpu('webgpu', () => keepsSinksOut(() => createWebGpuDevice(SHAPE)));
