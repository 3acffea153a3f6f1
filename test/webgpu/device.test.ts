/** A GPU with small limits, without a WGSL feature, out of memory, that rejects a command, or that is lost. */

import { afterAll, describe, expect, it } from 'vitest';
import { createSequence } from '../../src/cache/create-sequence.ts';
import { leafLayout } from '../../src/cache/leaf.ts';
import type { Sequence } from '../../src/cache/sequence.ts';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { parseSpec } from '../../src/codec/spec.ts';
import { openModelFile } from '../../src/engine/engine.ts';
import { warmUp } from '../../src/engine/warm-up.ts';
import type { Tensor } from '../../src/kernel/device.ts';
import type { AdapterInfo } from '../../src/kernel/webgpu/adapter.ts';
import { createWebGpuDevice, WebGpuDevice, type WebGpuOptions } from '../../src/kernel/webgpu/device.ts';
import { Gpu } from '../../src/kernel/webgpu/gpu.ts';
import type { Kernel } from '../../src/kernel/webgpu/kernel.ts';
import { readBuffer, u32, writeBuffer } from '../../src/kernel/webgpu/kernel.ts';
import { forward } from '../../src/model/forward.ts';
import { createScratch } from '../../src/model/scratch.ts';
import { loadWeights } from '../../src/model/weights.ts';
import { createPlan } from '../../src/plan/plan.ts';
import { CapacityError, DeviceError } from '../../src/util/errors.ts';
import { runAttention } from '../support/attention.ts';
import { createTrained } from '../support/codec-suite.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { itAll, matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { tinyModel } from '../support/tiny-model.ts';
import { nullDevice } from './compiler.ts';
import { describeGpu } from './gpu.ts';

const SHAPE = { headDim: 32, heads: 2, kvHeads: 1, pageTokens: 32 };
/** The minimum limits of WebGPU, which the device enforces. */
const MIN_LIMITS = { workgroupMemory: 16384, storageBuffers: 8 };

const opened: WebGpuDevice[] = [];
async function open(options: Partial<WebGpuOptions> = {}): Promise<WebGpuDevice> {
  const device = await createWebGpuDevice({ ...SHAPE, ...options });
  opened.push(device);
  return device;
}
afterAll(() => Promise.all(opened.map(device => device.dispose())));

const readAll = (device: WebGpuDevice, x: Tensor, rows: number) =>
  Promise.all(Array.from({ length: rows }, (_, r) => device.readRows(x, r)));

/** The gated product of two projections for every number of rows: fused, or one operation at a time. */
async function gates(device: WebGpuDevice, rowCounts: readonly number[], together = true): Promise<Float32Array[]> {
  const [cols, outs] = [128, 64];
  const matrices = await Promise.all(
    [1, 2].map(seed => {
      const bytes = randomWeights('Q4_0', outs * cols, 0.1, seeded(seed));
      return device.loadWeights('Q4_0', outs, cols, async into => into.set(bytes));
    }),
  );
  const found: Float32Array[] = [];
  for (const rows of rowCounts) {
    const [x, gate, up] = [cols, outs, outs].map(n => device.createTensor(rows, n));
    device.writeRows(x, 0, normals(createRandom(rows), rows * cols));
    const projections = [gate, up].map((out, i) => ({ weights: matrices[i], out }));
    for (const some of together ? [projections] : projections.map(one => [one])) device.project(x, rows, some);
    device.gate(gate, up, rows, 'silu');
    found.push(...(await readAll(device, gate, rows)));
  }
  return found;
}

describeGpu('an adapter with small limits', () => {
  itAll('splits fused products of 5 to 8 rows that do not fit 32 KiB of workgroup memory', async () => {
    const device = await open({ unroll: 4, limits: { workgroupMemory: 32768 } });
    expect(await gates(device, [6])).toEqual(await gates(device, [6], false));
  });

  itAll('16 KiB and 8 storage buffers give the same bits as larger limits, for prompts of 1 to 16 rows', async () => {
    const rows = Array.from({ length: 16 }, (_, i) => i + 1);
    const [large, small] = [await open(), await open({ limits: MIN_LIMITS })];
    expect(small.gpu.limits).toMatchObject(MIN_LIMITS);
    expect(await gates(small, rows)).toEqual(await gates(large, rows));
    const chunks = [40, ...rows];
    const expected = await runAttention(large, { ...SHAPE, spec: 'tq4u' }, chunks);
    expect((await runAttention(small, { ...SHAPE, spec: 'tq4u' }, chunks)).outputs).toEqual(expected.outputs);
  });

  itAll('splits the query heads of a KV head that do not fit one workgroup, with the same bits', async () => {
    const shape = { headDim: 64, heads: 6, kvHeads: 1, pageTokens: 128 };
    const run = async (device: WebGpuDevice) =>
      (await runAttention(device, { ...shape, spec: 'tq4' }, [140, 1])).outputs;
    const small = await open({ ...shape, precise: true, limits: MIN_LIMITS });
    const planned = await small.gpu.planKernels(async () => {
      await run(small);
    });
    expect(planned.filter(({ name }) => /pages.* parts$/.test(name)).length).toBeGreaterThan(0);
    expect(await run(small)).toEqual(await run(await open({ ...shape, precise: true })));
  });
});

describeGpu('WGSL without packed int8 dots', () => {
  /** Calls every packed function that kernels use. */
  const kernel: Kernel = {
    name: 'packed',
    summary: 'Calls every packed int8 function.',
    params: u32('words'),
    buffers: [readBuffer('a', 'u32'), writeBuffer('out', 'u32')],
    size: 64,
    body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  if (lane >= p.words) { return; }
  let x = a[lane];
  let y = a[p.words - 1 - lane];
  out[6 * lane] = bitcast<u32>(dot4I8Packed(x, y));
  out[6 * lane + 1] = dot4U8Packed(x, y);
  out[6 * lane + 2] = pack4xI8(unpack4xI8(x) - vec4i(200));
  out[6 * lane + 3] = pack4xU8(unpack4xU8(x) + vec4u(200));
  out[6 * lane + 4] = bitcast<u32>(unpack4xI8(x).w * unpack4xI8(y).x);
  out[6 * lane + 5] = unpack4xU8(x).z * unpack4xU8(y).y;
}`,
  };
  const words = Uint32Array.from({ length: 64 }, (_, i) => Math.imul(i + 1, 0x9e3779b1));

  it('uses its own functions, with the same bits', async () => {
    const [own, builtin] = await Promise.all([false, true].map(packedDots => open({ packedDots })));
    const run = async ({ gpu }: WebGpuDevice) => {
      const [a, out] = [gpu.createBuffer(256, 'words'), gpu.createBuffer(6 * 256, 'results')];
      gpu.upload(a, 0, new Uint8Array(words.buffer));
      gpu.run(kernel, [64], [a, out], [1]);
      return new Uint32Array(await gpu.read(out, 0, 6 * 256));
    };
    expect(await run(own)).toEqual(await run(builtin));
    expect(await gates(own, [3])).toEqual(await gates(builtin, [3]));
  });
});

describeGpu('attention', () => {
  it('reads its own RoPE table if the table is uploaded during a pass', async () => {
    const device = await open();
    const { headDim, heads, kvHeads, pageTokens } = SHAPE;
    const ropeFrequencies = createRopeFrequencies(headDim);
    const made = createTrained('mead2u', { headDim, kvHeads, pageTokens, ropeFrequencies }, new Float32Array(headDim));
    const cache = { headDim, kvHeads, pageTokens, sinks: 0 };
    const sequence = createSequence({ device, shape: cache, leaf: leafLayout([made]), recent: 0, context: 256 });
    const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.createTensor(pageTokens, n * headDim));
    [k, v, q].forEach((x, i) => {
      device.writeRows(x, 0, normals(createRandom(i), x.rows * x.cols));
    });
    sequence.plan(pageTokens);
    await device.ensureMemory([sequence.view]);
    device.append(0, k, v, [{ view: sequence.view, row: 0, count: pageTokens, position: 0, sealedPages: 0 }]);
    sequence.commit(pageTokens);
    sequence.plan(1);
    await device.ensureMemory([sequence.view]);
    device.seal(0, [{ view: sequence.view, page: 0 }]);
    const [weight, normed] = [device.createTensor(1, heads * headDim), device.createTensor(2, heads * headDim)];
    // As if many pages had been dropped: the RoPE table of twice as many pages is larger than an upload may be.
    const firstLeaf = 4096;
    const view = { ...sequence.view, firstLeaf };
    const attend = async () => {
      const run = { view, row: 0, count: 1, position: (firstLeaf + 1) * pageTokens, sealedPages: firstLeaf + 1 };
      device.append(0, k, v, [run]);
      device.attend(0, q, out, [run], { scale: 0.1 });
      // The pass continues: parameters of later operations are placed after those of attention.
      for (let i = 0; i < 4; i++) device.rmsNorm(q, 2, weight, 1e-5, normed);
      return device.readRows(out, 0);
    };
    // The arena is empty: parameters after the upload are placed where the table was.
    await device.readRows(q, 0);
    const first = await attend();
    expect(first).toEqual(await attend());
  });
});

/** A device whose allocations fail for some labels, in the way of WebGPU: an invalid buffer and an error scope. */
function withoutMemory(device: GPUDevice, fails: (label: string) => boolean): GPUDevice {
  const failed: boolean[] = [];
  const wrapped: Partial<GPUDevice> = {
    pushErrorScope(filter) {
      failed.push(false);
      device.pushErrorScope(filter);
    },
    async popErrorScope() {
      const missing = failed.pop();
      const error = await device.popErrorScope();
      return missing ? new GPUOutOfMemoryError('Out of memory.') : error;
    },
    createBuffer(descriptor) {
      if (!fails(descriptor.label ?? '')) return device.createBuffer(descriptor);
      failed[failed.length - 1] = true;
      // An invalid buffer: larger than any can be.
      device.pushErrorScope('validation');
      const invalid = device.createBuffer({ ...descriptor, size: 2 ** 52 });
      device.popErrorScope();
      return invalid;
    },
  };
  return new Proxy(device, {
    get(target, key) {
      const own = wrapped[key as keyof GPUDevice] ?? Reflect.get(target, key, target);
      return typeof own === 'function' && !(key in wrapped) ? own.bind(target) : own;
    },
    set: (target, key, value) => Reflect.set(target, key, value, target),
  });
}

class GPUOutOfMemoryError {
  constructor(readonly message: string) {}
}

describeGpu('out of memory', () => {
  const { headDim, kvHeads, pageTokens } = SHAPE;
  const layer = createTrained(
    'f16',
    { headDim, kvHeads, pageTokens, ropeFrequencies: createRopeFrequencies(headDim) },
    new Float32Array(headDim),
  );
  const leaf = leafLayout([layer, layer]);
  /** With one block of the tail. */
  const openSequence = (device: WebGpuDevice): Sequence => {
    const shape = { headDim, kvHeads, pageTokens, sinks: 0 };
    const sequence = createSequence({ device, shape, leaf, recent: 0, context: 4096 });
    sequence.plan(1);
    return sequence;
  };
  const rowsOf = (device: WebGpuDevice, n: number) => {
    const tensor = device.createTensor(1, n * headDim);
    device.writeRows(tensor, 0, normals(createRandom(n), n * headDim));
    return tensor;
  };
  const attendLast = async (device: WebGpuDevice, sequence: Sequence) => {
    const [k, q, out] = [
      rowsOf(device, kvHeads),
      rowsOf(device, SHAPE.heads),
      device.createTensor(1, SHAPE.heads * headDim),
    ];
    const [run] = sequence.plan(1);
    await device.ensureMemory([sequence.view]);
    const runs = [{ ...run, row: 0, view: sequence.view }];
    device.append(0, k, k, runs);
    device.attend(0, q, out, runs, { scale: 1 });
    return device.readRows(out, 0);
  };
  /** Initial number of blocks of a pool. */
  const FIRST = 8;

  it.each(matrix(['cache layer 0', 'cache layer 1'], { 'cache layer 1': 'frees what layer 0 got' }))(
    'when a pool grows (%s): a CapacityError, and everything else keeps working',
    async label => {
      let full = false;
      const { gpu, info } = await open();
      const short = withoutMemory(gpu.device, name => full && name.startsWith(label));
      const device = new WebGpuDevice(new Gpu(short), info, SHAPE);
      const first = openSequence(device);
      const expected = await attendLast(device, first);
      const others = Array.from({ length: FIRST - 1 }, () => openSequence(device));
      for (const other of others) await device.ensureMemory([other.view]);
      const { allocatedBytes } = device;

      full = true;
      const one = openSequence(device);
      const failed = device.ensureMemory([one.view]);
      await expect(failed).rejects.toThrow(CapacityError);
      await expect(failed).rejects.toThrow(/out of memory: it could not allocate .*smaller context/);
      expect(await attendLast(device, first)).toEqual(expected);
      one.dispose();
      expect(device.ensureMemory([first.view])).toBeUndefined();
      expect(device.allocatedBytes).toBeLessThanOrEqual(2 * allocatedBytes);

      full = false;
      const again = openSequence(device);
      expect(await attendLast(device, again)).toEqual(expected);
      expect(await attendLast(device, first)).toEqual(expected);
    },
  );

  it('during a pass: this pass fails, and later ones do not', async () => {
    let full = false;
    const { gpu, info } = await open();
    const short = withoutMemory(gpu.device, name => full && name === 'f16 states');
    const device = new WebGpuDevice(new Gpu(short), info, SHAPE);
    const sequence = openSequence(device);
    full = true;
    await expect(attendLast(device, sequence)).rejects.toThrow(CapacityError);
    full = false;
    expect((await attendLast(device, sequence)).some(x => x !== 0)).toBe(true);
  });

  it('in a real driver: a CapacityError', async context => {
    const gpuDevice = await nullDevice();
    if (typeof gpuDevice === 'string') return context.skip();
    const gpu = new Gpu(gpuDevice);
    const limits = { ...gpu.limits, binding: 128 << 20 };
    const info = { subgroups: 0, subgroupMin: 0, limits, software: true } as unknown as AdapterInfo;
    const device = new WebGpuDevice(gpu, info, SHAPE);
    // Dawn's null backend has 512 MiB.
    const load = (rows: number) => device.loadWeights('F32', rows, 2048, async () => {});
    // Referenced until the end, or they would be garbage collected.
    const kept = [1, 2, 3].map(() => gpu.createBuffer(128 << 20, 'kept'));
    await load(64);
    await expect(load(16384)).rejects.toThrow(CapacityError);
    expect(kept.length).toBe(3);
    expect((await device.readRows(device.createTensor(1, 16), 0)).length).toBe(16);
    await device.dispose();
  });
});

describeGpu('a device that fails', () => {
  it('rejects a command: the next await throws', async () => {
    const device = await open();
    const { gpu } = device;
    const tensor = device.createTensor(1, 16);
    gpu.copy(gpu.arena, 0, gpu.arena, 2, 4);
    await expect(device.readRows(tensor, 0)).rejects.toThrow(DeviceError);
    await expect(device.readRows(tensor, 0)).rejects.toThrow(/refused a command/);
  });

  // engine.test.ts loads a model again.
  it('is lost: the same typed error from every call', async () => {
    const device = await open();
    const tensor = device.createTensor(1, 64);
    const block = device.createBlock(64);
    device.gpu.device.destroy();
    const lost = await device.lost;
    expect(lost).toBeInstanceOf(DeviceError);
    expect(lost.message).toMatch(/was lost \(.+\). Dispose this model and load it again./);
    await expect(device.readRows(tensor, 0)).rejects.toBe(lost);
    expect(() => device.createTensor(1, 1)).toThrow(lost);
    device.free(tensor);
    device.free(block);
    await device.dispose();
  });

  it('is disposed: not reported as lost', async () => {
    const device = await open();
    let lost = false;
    device.lost.then(() => {
      lost = true;
    });
    await device.dispose();
    await new Promise(resolve => setTimeout(resolve, 20));
    expect(lost).toBe(false);
    expect(() => device.createTensor(1, 1)).toThrow(/disposed/);
  });
});

describe('a warm-up', () => {
  /** Pipelines that a device compiles synchronously, while commands wait. */
  const compiledLate = (device: GPUDevice): string[] => {
    const late: string[] = [];
    const create = device.createComputePipeline.bind(device);
    device.createComputePipeline = descriptor => {
      late.push(descriptor.label ?? '');
      return create(descriptor);
    };
    return late;
  };

  it.for(['Q4_0', 'F16'] as const)('compiles all pipelines of prefill and decode: %s', async (type, context) => {
    const gpuDevice = await nullDevice([]);
    if (typeof gpuDevice === 'string') return context.skip();
    const late = compiledLate(gpuDevice);
    const gpu = new Gpu(gpuDevice);
    const heads = { headDim: 64, heads: 4, kvHeads: 2 };
    const info = { subgroups: 0, subgroupMin: 0, limits: gpu.limits, software: false } as unknown as AdapterInfo;
    const device = new WebGpuDevice(gpu, info, { ...heads, pageTokens: 32 });
    const model = tinyModel({ type, width: 256, ffn: 512, ...heads, tied: false });
    const file = await openModelFile(new Blob([writeGguf(model)]));
    const { config, rope } = file;
    const weights = await loadWeights(file.gguf, config, device);
    const scratch = createScratch(device, config, 512);
    const plan = createPlan(parseSpec('tq4u'), { ...config, pageTokens: 32 });
    const openSequence = (): Sequence => {
      const shape = { ...heads, pageTokens: 32, sinks: plan.window.sink };
      return createSequence({ device, shape, leaf: plan.leaf, recent: plan.window.recent, context: 4096 });
    };
    await warmUp({ device, config, rope, weights, scratch, openSequence }, plan);
    for (const length of [1, 3, 11, 38, 100, 300]) {
      const sequence = openSequence();
      for (const [rows, prompt] of [
        [length, true],
        [1, false],
        [1, false],
      ] as const) {
        const choice = { temperature: 1, topK: 40, topP: 0.9, minP: 0, random: 0.5 };
        const chunk = {
          sequence,
          tokens: Array(rows).fill(1),
          prefill: prompt,
          logits: 'last' as const,
          sampling: choice,
        };
        const hooks = { onLogits() {}, onToken() {} };
        await (await forward({ device, config, weights, rope, scratch }, [chunk], hooks)).delivered;
      }
      sequence.dispose();
    }
    expect(late).toEqual([]);
    await file.gguf.close();
    await device.dispose();
  });
});
