/** The test of a GPU before it is used, on an adapter that claims to be a GPU: with each of its kernels broken, once. */
import { afterEach, expect, it, vi } from 'vitest';
import { parseSpec } from '../../src/codec/spec.ts';
import { openModelFile, planShape } from '../../src/engine/engine.ts';
import { selfTest } from '../../src/engine/self-test.ts';
import { loadModel } from '../../src/index.ts';
import { createWebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import { Gpu } from '../../src/kernel/webgpu/gpu.ts';
import { createPlan } from '../../src/plan/plan.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { describeGpu } from '../webgpu/gpu.ts';

vi.mock('../../src/kernel/webgpu/adapter.ts', async original => {
  const adapter = await original<typeof import('../../src/kernel/webgpu/adapter.ts')>();
  const findAdapter = async () => {
    const found = await adapter.findAdapter();
    return typeof found === 'string' ? found : { ...found, info: { ...found.info, name: 'A GPU', software: false } };
  };
  return { ...adapter, findAdapter };
});
afterEach(() => vi.restoreAllMocks());

const PAGE_TOKENS = 16;
const blob = new Blob([writeGguf(tinyModel({ tied: false, headDim: 32, type: 'Q4_0', layers: 1 }))]);

/** The dispatches of kernels whose names begin so do nothing. */
function leaveOut(name: string) {
  const { run } = Gpu.prototype;
  return vi.spyOn(Gpu.prototype, 'run').mockImplementation(function (this: Gpu, kernel, ...rest) {
    if (!kernel.name.startsWith(name)) run.call(this, kernel, ...rest);
  });
}

describeGpu('the test of a GPU', () => {
  it.each(['tq4', 'f16'])('%s: finds each kernel that does nothing', async kv => {
    const file = await openModelFile(blob);
    const plan = createPlan(parseSpec(kv), planShape(file, PAGE_TOKENS));
    const device = await createWebGpuDevice({ ...file.config, pageTokens: PAGE_TOKENS });
    expect(await selfTest(device, file, plan)).toBeUndefined();
    // Everything is compiled, so that what is seen from now on runs.
    vi.spyOn(device, 'warmUp').mockResolvedValue();
    const names = new Set<string>();
    const { run } = Gpu.prototype;
    const spy = vi.spyOn(Gpu.prototype, 'run').mockImplementation(function (this: Gpu, kernel, ...rest) {
      names.add(kernel.name);
      run.call(this, kernel, ...rest);
    });
    expect(await selfTest(device, file, plan)).toBeUndefined();
    spy.mockRestore();
    expect(names.size).toBeGreaterThan(15);
    for (const name of names) {
      const spy = leaveOut(name);
      // A page whose keys are not centered is right, though less exact.
      if (!name.startsWith('store means'))
        expect.soft(await selfTest(device, file, plan), name).toMatch(/test model|likeliest/);
      spy.mockRestore();
    }
    await device.dispose();
    await file.gguf.close();
  });

  it('a GPU that computes wrong results is refused with its name, and auto takes the next device', async () => {
    const load = (device: 'auto' | 'webgpu') =>
      loadModel(blob, { device, kv: 'tq4', pageTokens: PAGE_TOKENS, warmUp: false });
    await using good = await load('webgpu');
    expect(good.device.name).toBe('webgpu');
    leaveOut('rope');
    await expect(load('webgpu')).rejects.toThrow(/A GPU computes wrong results: the attention of \d+ of 26 tokens/);
    await using other = await load('auto');
    expect(other.device).toMatchObject({ name: 'wasm', why: expect.stringMatching(/no webgpu: A GPU computes wrong/) });
    expect(other.notices).toContainEqual(
      expect.stringMatching(/^webgpu is not used: A GPU computes wrong results: .*Update/),
    );
  });
});
