import { expect, it } from 'vitest';
import { createSequence } from '../cache/create-sequence.ts';
import { createPool } from '../cache/pool.ts';
import { openDevice } from '../kernel/open.ts';
import { CapacityError } from '../util/errors.ts';
import { createCache } from './vector-cache.ts';
import { createStepRunner, type State } from './vector-steps.ts';

it('a step that finds no memory on the device leaves its sequences as they were', async () => {
  await using cache = await createCache({ headDim: 8, pageTokens: 16 }, 'f16', { device: 'js' });
  const { plan } = cache;
  const { device } = await openDevice('js', { headDim: 8, heads: 1, kvHeads: 1, pageTokens: 16 }, {});
  const pool = createPool(device);
  const runner = createStepRunner(device, pool, plan, 1, 1);
  const shape = { headDim: 8, kvHeads: 1, pageTokens: 16, sinks: plan.window.sink };
  const open = (): State => ({
    sequence: createSequence({ device, pool, shape, leaf: plan.leaf, recent: 0, context: Number.POSITIVE_INFINITY }),
  });
  const rowsOf = (state: State, count: number) => {
    const vectors = Float32Array.from({ length: 8 * count }, (_, i) => Math.sin(i));
    return { state, queries: vectors, keys: vectors, values: vectors, count };
  };
  const states = [open(), open()];
  const [used, { createBlock }] = [pool.used, device];
  const runAll = (count: number) =>
    runner.runLayer(
      0,
      states.map(state => rowsOf(state, count)),
    );
  const expectUnchanged = () => {
    for (const { sequence, step } of states)
      expect([sequence.length, sequence.isPlanned, step]).toEqual([0, false, undefined]);
    expect(pool.used).toBe(used);
  };
  // As a GPU, which allocates what was planned later.
  device.ensureMemory = async () => {
    throw new CapacityError('no memory');
  };
  await expect(runAll(20)).rejects.toThrow(CapacityError);
  expectUnchanged();
  device.ensureMemory = undefined;
  let left = 4;
  device.createBlock = (...block) => {
    if (left-- === 0) throw new CapacityError('no memory');
    return createBlock.apply(device, block);
  };
  await expect(runAll(20)).rejects.toThrow(CapacityError);
  expect(left).toBe(-1);
  device.createBlock = createBlock;
  expectUnchanged();
  const outputs = await runAll(40);
  expect(outputs[0]).toEqual(outputs[1]);
  expect(outputs[0]).toEqual((await runner.runLayer(0, [rowsOf(open(), 40)]))[0]);
  await device.dispose();
});
