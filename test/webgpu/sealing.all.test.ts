/** Pages of several sequences sealed together have the bytes of pages sealed one by one, in any number. */
import { expect, it } from 'vitest';
import { createSequence } from '../../src/cache/create-sequence.ts';
import { leafLayout } from '../../src/cache/leaf.ts';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import type { WebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import { createTrained } from '../support/codec-suite.ts';
import { LONG_CASES, matrix } from '../support/matrix.ts';
import { describeGpu, openWebGpu, SMALL_SHAPE } from './gpu.ts';

const { headDim, kvHeads, pageTokens } = SMALL_SHAPE;
/** More than the device seals in one dispatch, and an odd number. */
const SEQUENCES = 19;

/** Bytes of the sealed pages: of different vectors, at different positions, in `calls` calls of `seal`. */
async function sealed(device: WebGpuDevice, spec: string, calls: number): Promise<Uint8Array[]> {
  const ropeFrequencies = createRopeFrequencies(headDim);
  const shape = { headDim, kvHeads, pageTokens, ropeFrequencies };
  const codecs = [spec, 'f16'].map(name => createTrained(name, shape, new Float32Array(headDim)));
  const leaf = leafLayout(codecs);
  const cache = { headDim, kvHeads, pageTokens, sinks: 1 };
  const [k, v] = [0, 1].map(() => device.createTensor(pageTokens, kvHeads * headDim));
  const requests = [];
  for (let i = 0; i < SEQUENCES; i++) {
    const sequence = createSequence({ device, shape: cache, leaf, recent: 0, context: 8 * pageTokens });
    const page = i % 3;
    sequence.plan(page * pageTokens + pageTokens);
    await device.ensureMemory([sequence.view]);
    [k, v].forEach((x, side) => {
      device.writeRows(x, 0, normals(createRandom(2 * i + side), x.rows * x.cols));
    });
    const run = { view: sequence.view, row: 0, count: pageTokens, position: page * pageTokens, sealedPages: page };
    for (const layer of [0, 1]) device.append(layer, k, v, [run]);
    sequence.commit(page * pageTokens + pageTokens);
    sequence.plan(1);
    await device.ensureMemory([sequence.view]);
    requests.push({ view: sequence.view, page, leaf: sequence.view.leaves[page] });
  }
  const size = Math.ceil(SEQUENCES / calls);
  for (let first = 0; first < SEQUENCES; first += size)
    for (const layer of [0, 1]) device.seal(layer, requests.slice(first, first + size));
  return Promise.all(requests.map(({ leaf }) => device.readBlock(leaf)));
}

const SPECS = [
  ...['f16', 'tq4', 'tq35', 'kivi2g32', 'oscar2g32', 'mead2', 'mead2u', 'vec-d4b8', 'oaken'],
  ...(LONG_CASES ? ['q4_0', 'tri8i4/tq2'] : []),
];
const REPRESENTATIVES = { mead2: 'page-relative keys', oaken: 'three kernels' };

describeGpu('sealing of several sequences', () => {
  it.each(matrix(SPECS, REPRESENTATIVES))('%s: together, in odd groups and one by one', async spec => {
    const device = await openWebGpu();
    const alone = await sealed(device, spec, SEQUENCES);
    expect(new Set(alone.map(bytes => bytes.join())).size).toBe(SEQUENCES);
    expect(await sealed(device, spec, 1)).toEqual(alone);
    expect(await sealed(device, spec, 4)).toEqual(alone);
  });
});
