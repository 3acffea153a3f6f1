/** Sinks are read in f16, never from codes: their values must not change the codes of other tokens in their page. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createCodec } from '../src/codec/kv.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import type { Device } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { firstCodedRow } from '../src/kernel/visibility.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import { createWebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { runAttention } from './support/attention.ts';
import { matrix } from './support/matrix.ts';
import { describeGpu } from './webgpu/gpu.ts';

const SHAPE = { headDim: 64, heads: 2, kvHeads: 2, pageTokens: 32 };
/** One codec per kind of page. */
const SPECS = [
  ...['f16', 'fp8', 'q8_0', 'q4_0', 'tq4', 'tq2u', 'tq35', 'kivi2g32', 'kivi2g16-token/kivi2g16-channel'],
  ...['oscar2g32', 'oscar2g32-xh', 'oaken', 'vec-d4b8', 'tri8i4/tq2', 'mead2', 'mead2u'],
];
const REPRESENTATIVES = {
  tq4: 'a norm per token',
  kivi2g32: 'ranges over the tokens of a page',
  oscar2g32: 'norms and ranges',
  oaken: 'thresholds and outlier lists',
  'tri8i4/tq2': 'the largest pairs of a key',
  mead2u: 'page-relative keys',
};
/** Maximum share of sealed bytes that differ because a value lies on a rounding boundary. Copied rows count each time. */
const MAX_TIES = 5e-3;

describe('the first group of a page', () => {
  it.each(['kivi2g32', 'oscar2g32'])('%s: large sinks do not increase the error of other keys', spec => {
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

describe('coded rows', () => {
  it('start after the sinks, wherever these end', () => {
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
  const { leaves } = await runAttention(device, { ...SHAPE, spec }, [SHAPE.pageTokens + 1], { lastRows: 0, sinkScale });
  return leaves[0];
}

const js = createJsDevice();
const expected = new Map<string, Promise<Uint8Array>>();
/** The page that js seals. */
function expectedPage(spec: string): Promise<Uint8Array> {
  const page = expected.get(spec) ?? sealFirstPage(js, spec, 1);
  expected.set(spec, page);
  return page;
}

function testSinks(create: () => Promise<Device>): void {
  let device: Device;
  beforeAll(async () => {
    device = await create();
    open.push(device);
  });

  it.each(matrix(SPECS, REPRESENTATIVES))(
    '%s: large sinks do not change the page, and it equals the page of js',
    async spec => {
      for (const sinks of [0, 4, 7]) {
        const name = `${spec}+sink${sinks}`;
        const page = await sealFirstPage(device, name, 1);
        const expectedBytes = await expectedPage(name);
        expect(page.filter((byte, i) => byte !== expectedBytes[i]).length / page.length, name).toBeLessThanOrEqual(
          MAX_TIES,
        );
        if (sinks > 0) expect(await sealFirstPage(device, name, 20), name).toEqual(page);
      }
    },
  );
}

describe('js', () => testSinks(async () => js));
describe('wasm', () => testSinks(() => createWasmDevice({ ...SHAPE, threads: 2 })));
describeGpu('webgpu', () => testSinks(() => createWebGpuDevice(SHAPE)));
