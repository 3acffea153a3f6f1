/**
 * Golden WGSL: the generated kernels of every kernel variant, formatted as `npm run bench -- wgsl` prints them. Six are there
 * to read and to review changes; hashes.json has the others. Needs no GPU. If a change is intended, write them again with
 * `KVASIR_GOLDEN=write npx vitest run wgsl-golden`.
 */

import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { leafLayout } from '../src/cache/leaf.ts';
import { createCodec, placeholderLearned } from '../src/codec/kv.ts';
import { createRopeFrequencies } from '../src/codec/parts/rope.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { codecKernels, type DumpOptions, dumpKernel, kernelName, plannedKernels } from '../src/kernel/webgpu/dump.ts';
import type { Kernel } from '../src/kernel/webgpu/kernel.ts';

const FOLDER = new URL('./fixtures/wgsl/', import.meta.url);
const SHAPE = { headDim: 64, heads: 2, kvHeads: 2, pageTokens: 128 };

/** For kernels that read only heads of 128 dims. */
const WIDE = { headDim: 128 };

/** `rows` new rows of a codec, on an adapter with subgroups of 32 unless the options say otherwise. */
function attention(spec: string, rows = 1, options: Partial<DumpOptions> = {}): Promise<Kernel[]> {
  const { headDim = SHAPE.headDim } = options;
  const shape = { ...SHAPE, headDim, ropeFrequencies: createRopeFrequencies(headDim) };
  const [layer] = leafLayout([createCodec(spec, shape, placeholderLearned(parseSpec(spec), shape))]).layers;
  return codecKernels(layer, rows, { ...SHAPE, subgroupSize: 32, ...options });
}

/** Norm, projections of Q4_K weights, RoPE and the gate of `rows` rows; `prompt`: as rows of a prompt. */
function layer(rows: number, prompt = false): Promise<Kernel[]> {
  const options = { ...SHAPE, subgroupSize: 32, f16: prompt, subgroupMatrices: prompt, unroll: 2 };
  return plannedKernels(options, async device => {
    const cols = 256;
    const weights = () => device.randomWeights('Q4_K', cols, cols);
    const tensor = () => device.createTensor(rows, cols);
    const project = (count: number) => {
      const list = Array.from({ length: count }, () => ({ weights: weights(), out: tensor() }));
      device.project(x, rows, list, prompt ? rows : 0);
      return list.map(({ out }) => out);
    };
    const x = tensor();
    device.rmsNorm(tensor(), rows, device.createTensor(1, cols), 1e-5, x);
    project(3);
    const [gate, up] = project(2);
    device.gate(gate, up, rows, 'silu');
    project(1);
    device.embed(weights(), [1], device.createTensor(1, cols));
    device.rope(x, rows, SHAPE.headDim, device.createTensor(rows, SHAPE.headDim));
    device.free(x);
  });
}

const sampling = () =>
  plannedKernels({ ...SHAPE, subgroupSize: 32 }, async device => {
    const request = { row: 0, temperature: 1, topK: 40, topP: 0.9, minP: 0, random: 0.5 };
    device.sampleTokens(device.createTensor(1, 1000), [request]).ids.catch(() => {});
  });

const hashOf = (text: string) => createHash('sha256').update(text).digest('hex');

/** Kernel names without sizes: the same variant in another size is not recorded again. */
const variantName = (kernel: Kernel) => kernelName(kernel).replaceAll(/\b(?![01]{3}\b)\d+\b/g, '');

/** In this order: a golden has the kernel variants that none before it has. */
const GOLDENS: Record<string, () => Promise<Kernel[]>> = {
  'one-subgroup-levels': () => attention('tq4'),
  'one-subgroup-one-bit': () => attention('tq1', 1, WIDE),
  'one-subgroup-fp8': () => attention('fp8'),
  'one-subgroup-blocks': () => attention('q4_0', 1, WIDE),
  'one-subgroup-affine': () => attention('kivi2g32'),
  'one-subgroup-book': () => attention('vec-d4b8', 1, WIDE),
  'one-subgroup-spectrum': () => attention('tri16i8/f16'),
  'one-subgroup-matrices': () => attention('f16', 1, { ...WIDE, f16: true, subgroupMatrices: true }),
  'four-subgroups-mixed': () => attention('mead2u'),
  'four-subgroups-additive': () => attention('mead2'),
  'generic-levels': () => attention('tq4', 2, { precise: true, unroll: 1 }),
  'generic-page-relative': () => attention('mead2', 2, { precise: true, unroll: 1 }),
  'generic-hybrid': () => attention('tq35/f16'),
  'generic-oaken': () => attention('oaken/f16'),
  'horizontal-fusion-no-subgroups': () =>
    attention('tq4', 1, { precise: true, subgroupSize: 0, horizontalFusion: true }),
  'fused-gemv': () => layer(1),
  gemv: () => layer(9),
  'gemm-int8': () => layer(64),
  'gemm-subgroup-matrix': () => layer(64, true),
  sampling,
};

/** One of each frame and of each kind of product. */
const READABLE = [
  'one-subgroup-levels',
  'four-subgroups-additive',
  'generic-levels',
  'fused-gemv',
  'gemm-int8',
  'gemm-subgroup-matrix',
];
const HASHES = 'hashes.json';

const seen = new Set<string>();
const dumps = new Map<string, string>();
for (const [name, plan] of Object.entries(GOLDENS)) {
  const kernels = (await plan()).filter(kernel => {
    const isNew = !seen.has(variantName(kernel));
    seen.add(variantName(kernel));
    return isNew;
  });
  dumps.set(name, `${kernels.map(dumpKernel).join('\n\n')}\n`);
}
if (process.env.KVASIR_GOLDEN === 'write') {
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(FOLDER, { recursive: true });
  for (const name of READABLE) writeFileSync(new URL(`${name}.wgsl`, FOLDER), dumps.get(name)!);
  const hashes = [...dumps].filter(([name]) => !READABLE.includes(name)).map(([name, text]) => [name, hashOf(text)]);
  writeFileSync(new URL(HASHES, FOLDER), `${JSON.stringify(Object.fromEntries(hashes), null, 2)}\n`);
}

const hashes: Record<string, string> = JSON.parse(readFileSync(new URL(HASHES, FOLDER), 'utf8'));

it.each([...dumps])('%s generates the same WGSL as before', (name, text) => {
  expect(text.length, 'the variant has kernels of its own').toBeGreaterThan(1);
  const changed = `the WGSL of ${name} changed; see the top of this file`;
  if (READABLE.includes(name)) expect(text, changed).toBe(readFileSync(new URL(`${name}.wgsl`, FOLDER), 'utf8'));
  else expect(hashOf(text), changed).toBe(hashes[name]);
});

it('has no golden WGSL of a variant that no longer exists', () => {
  expect(readdirSync(FOLDER).sort()).toEqual([...READABLE.map(name => `${name}.wgsl`), HASHES].sort());
  expect([...READABLE, ...Object.keys(hashes)].sort()).toEqual([...dumps.keys()].sort());
});
