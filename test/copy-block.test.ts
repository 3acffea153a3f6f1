/** Copies of cache blocks, on every device: all layers, in order with the other operations, without changing others. */
import { expect, it } from 'vitest';
import type { Block, Device, KvView } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import { seeded } from './support/random.ts';
import { describeGpu, openWebGpu } from './webgpu/gpu.ts';

const BYTES = 208;
/** Layers of different sizes, one of them empty. */
const LAYER_OFFSETS = [0, 48, 48, 64];

async function expectCopies(device: Device): Promise<void> {
  const random = seeded(1);
  const bytes = () => Uint8Array.from({ length: BYTES }, () => random.below(256));
  const [first, second, other] = [bytes(), bytes(), bytes()];
  const [a, b, c, d] = Array.from({ length: 4 }, () => device.createBlock(BYTES, LAYER_OFFSETS));
  await device.ensureMemory?.([{ tail: [a], sinkBlock: b, leaves: [c, d] } as unknown as KvView]);
  device.writeBlock(d, other);
  device.writeBlock(a, first);
  device.copyBlock(a, b);
  device.writeBlock(a, second);
  device.copyBlock(b, c);
  device.copyBlock(a, b);
  expect(await Promise.all([a, b, c, d].map(block => device.readBlock(block)))).toEqual([second, second, first, other]);
  for (const block of [a, b, c, d]) device.free(block);
}

/** A sequence can be forked before its blocks have memory, and the fork again. */
async function expectCopiesBeforeMemory(device: Device): Promise<void> {
  const random = seeded(2);
  const first = Uint8Array.from({ length: BYTES }, () => random.below(256));
  const create = () => device.createBlock(BYTES, LAYER_OFFSETS);
  const viewOf = (blocks: Block[]) =>
    ({ tail: [undefined], sinkBlock: blocks[0], leaves: blocks }) as unknown as KvView;
  const source = create();
  await device.ensureMemory?.([viewOf([source])]);
  device.writeBlock(source, first);
  const zeros = create();
  const copies = Array.from({ length: 40 }, create);
  for (const [i, copy] of copies.entries()) device.copyBlock(i === 0 ? source : copies[i - 1], copy);
  device.writeBlock(source, new Uint8Array(BYTES));
  device.free(copies.splice(20, 1)[0]);
  const [zerosAgain, overwritten] = [create(), create()];
  device.copyBlock(source, overwritten);
  device.copyBlock(zeros, zerosAgain);
  device.copyBlock(copies[0], overwritten);
  const all = [...copies, overwritten, zeros, zerosAgain];
  await device.ensureMemory?.([viewOf(all)]);
  const expected = all.map(block => (block === zeros || block === zerosAgain ? new Uint8Array(BYTES) : first));
  expect(await Promise.all(all.map(block => device.readBlock(block)))).toEqual(expected);
  for (const block of [source, ...all]) device.free(block);
}

it('js', async () => {
  await expectCopies(createJsDevice());
  await expectCopiesBeforeMemory(createJsDevice());
});

it('wasm', async () => {
  const device = await createWasmDevice({ headDim: 64, heads: 2, kvHeads: 2, pageTokens: 32, threads: 2 });
  await expectCopies(device);
  await expectCopiesBeforeMemory(device);
  await device.dispose();
});

describeGpu('webgpu', () => {
  it('copies each layer of its pools', async () => expectCopies(await openWebGpu()));
  it('copies blocks that have no memory yet', async () => expectCopiesBeforeMemory(await openWebGpu()));
});
