/**
 * No kernel reads workgroup memory that it has not written. WebGPU clears that memory, but SwiftShader takes half of its time
 * to compile the code that does so, and the other tests run without it (vitest.config.ts). Here kernels start with NaNs there.
 */
import { expect, it } from 'vitest';
import { zoo } from '../../src/codec/zoo.ts';
import { declarationsOf } from '../../src/kernel/webgpu/declarations.ts';
import { createWebGpuDevice, type WebGpuDevice, type WebGpuOptions } from '../../src/kernel/webgpu/device.ts';
import { weightTypes } from '../../src/kernel/weights/types.ts';
import { LONG_CASES } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { expectSameAsJs, INT8_ATTENTION } from './attention.ts';
import { describeGpu, SMALL_SHAPE } from './gpu.ts';

/** NaN as f32 and as two f16; an integer that is too large for an index. A variable: WGSL has no constants that are NaN. */
const NANS = 'var<private> nans: u32 = 0x7fc07fc0u;';

type Structs = ReadonlyMap<string, string>;

/** A WGSL expression of this type. */
function nanOf(type: string, structs: Structs): string {
  const members = structs.get(type)?.matchAll(/: (\w+(?:<.+>)?)/g);
  if (members) return `${type}(${[...members].map(([, member]) => nanOf(member, structs))})`;
  const [, element, count] = /^array<(.+), (\d+)>$/.exec(type) ?? [];
  if (element) return `${type}(${Array(Number(count)).fill(nanOf(element, structs))})`;
  const scalar = { vec2f: 'f32', vec4f: 'f32', vec2i: 'i32', vec2u: 'u32', vec4u: 'u32' }[type];
  return scalar ? `${type}(${nanOf(scalar, structs)})` : `bitcast<${type}>(nans)`;
}

/** Statements that store NaNs at `place`. */
function fill(place: string, type: string, structs: Structs): string {
  const [, element, count] = /^array<(.+), (\d+)>$/.exec(type) ?? [];
  const i = `i${place.length}`;
  if (element) return `for (var ${i} = 0; ${i} < ${count}; ${i}++) { ${fill(`${place}[${i}]`, element, structs)} }`;
  const [, atomic] = /^atomic<(.+)>$/.exec(type) ?? [];
  return atomic ? `atomicStore(&${place}, ${nanOf(atomic, structs)});` : `${place} = ${nanOf(type, structs)};`;
}

/** The shader with NaNs in workgroup memory. */
function fillWorkgroupMemory(code: string): string {
  const declared = declarationsOf(code);
  const structs = new Map(declared.filter(({ members }) => members).map(({ name, members }) => [name, members!]));
  const fills = declared
    .filter(({ kind }) => kind === 'var<workgroup>')
    .map(({ name, type }) => fill(name, type!, structs));
  const filled = `{ if (lane == 0) { ${fills.join(' ')} } workgroupBarrier(); $1 }`;
  return `${code.replace(/\{ (main\([^;]*;) \}$/, filled)}\n${NANS}`;
}

async function openFilled(options: Partial<WebGpuOptions> = {}): Promise<WebGpuDevice> {
  const device = await createWebGpuDevice({ ...SMALL_SHAPE, ...options });
  const { device: gpu } = device.gpu;
  const createShaderModule = gpu.createShaderModule.bind(gpu);
  gpu.createShaderModule = ({ code, ...rest }) => createShaderModule({ ...rest, code: fillWorkgroupMemory(code) });
  return device;
}

const ODD_SHAPE = { headDim: 20, heads: 2, kvHeads: 1 };

describeGpu('with NaNs in workgroup memory', () => {
  it.each(LONG_CASES ? zoo : ['tq4', 'mead2u'])('%s: attention and sealing like js', async spec => {
    await expectSameAsJs(await openFilled(), { spec }, INT8_ATTENTION);
  });

  it.each(LONG_CASES ? zoo : ['tq4-haar'])('%s, in precise mode: like js', async spec => {
    await expectSameAsJs(await openFilled({ precise: true }), { spec }, INT8_ATTENTION);
  });

  it('heads of 20 dims: like js', async () => {
    await expectSameAsJs(await openFilled(ODD_SHAPE), { spec: 'f16', ...ODD_SHAPE }, INT8_ATTENTION);
  });

  it.each(LONG_CASES ? weightTypes : ['Q4_0' as const])(
    '%s: products of one row and of several, and samples, have the same bits',
    async type => {
      const [rows, cols] = [37, 256];
      const bytes = randomWeights(type, rows * cols, 0.1, seeded(3));
      const run = async (device: WebGpuDevice) => {
        const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
        const ones = device.createTensor(1, cols);
        device.writeRows(ones, 0, new Float32Array(cols).fill(1));
        const found: unknown[] = [];
        for (const batch of [1, 20]) {
          const [input, normed] = [device.createTensor(batch, cols), device.createTensor(batch, cols)];
          const out = device.createTensor(batch, rows);
          device.embed(weights, Array(batch).fill(5), input);
          device.rmsNorm(input, batch, ones, 1e-5, normed);
          device.project(normed, batch, [{ weights, out }]);
          const request = { row: 0, temperature: 1, topK: 9, topP: 0.9, minP: 0, random: 0.5 };
          found.push(await device.readRows(out, 0), await device.sampleTokens(out, [request]).ids);
        }
        await device.dispose();
        return found;
      };
      expect(await run(await openFilled())).toEqual(await run(await createWebGpuDevice(SMALL_SHAPE)));
    },
  );
});
