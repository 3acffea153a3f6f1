/**
 * A webgpu device whose subgroup matrices are emulated in WGSL, so that kernels which use them run on SwiftShader: a lane
 * has eight elements of every sum, and multiplication reads both factors from workgroup memory. f16 is emulated by f32,
 * rounded where values are packed.
 */
import { openAdapter } from '../../src/kernel/webgpu/adapter.ts';
import { WebGpuDevice, type WebGpuOptions } from '../../src/kernel/webgpu/device.ts';
import { Gpu } from '../../src/kernel/webgpu/gpu.ts';
import type { Kernel } from '../../src/kernel/webgpu/kernel.ts';
import { SMALL_SHAPE } from './gpu.ts';

const SIDE = 16;
const LANES = 32;
const PER_LANE = SIDE ** 2 / LANES;

/** The arrays of f16 that a kernel's factors are loaded from. */
const factorsOf = (body: string): string[] => [
  ...new Set(
    [...body.matchAll(/subgroupMatrixLoad<subgroup_matrix_(?:left|right)<[^(]+>\(&(\w+), /g)].map(([, name]) => name),
  ),
];

const readFactor = (name: string, i: number) => `case ${i}u: { both = unpack2x16float(${name}[at / 8][at / 2 % 4]); }`;

/** A factor is its place in workgroup memory: array, offset, stride, and whether its columns are contiguous. */
const emulation = (factors: readonly string[]) => /* wgsl */ `
alias Sums = array<f32, ${PER_LANE}>;
var<private> own_lane: u32;
fn half_at(factor: vec4u, row: u32, column: u32) -> f32 {
  let at = 8 * factor.y + select(8 * row * factor.z + column, 8 * column * factor.z + row, factor.w == 1);
  var both: vec2f;
  switch (factor.x) { ${factors.map(readFactor).join('\n')} default: {} }
  return select(both.x, both.y, at % 2 == 1);
}
/** A factor that is kept while the memory it comes from changes: every lane has all of it. */
alias Kept = array<f32, ${SIDE ** 2}>;
fn keep(x: vec4u) -> Kept {
  var kept: Kept;
  for (var e = 0u; e < ${SIDE ** 2}; e++) { kept[e] = half_at(x, e / ${SIDE}, e % ${SIDE}); }
  return kept;
}
fn multiply_kept(x: Kept, w: vec4u, before: Sums) -> Sums {
  var kept = x;
  var sums = before;
  for (var n = 0u; n < ${PER_LANE}; n++) {
    let e = own_lane + ${LANES} * n;
    for (var k = 0u; k < ${SIDE}; k++) {
      sums[n] = fma(kept[e / ${SIDE} * ${SIDE} + k], half_at(w, k, e % ${SIDE}), sums[n]);
    }
  }
  return sums;
}
fn multiply(x: vec4u, w: vec4u, before: Sums) -> Sums {
  var sums = before;
  for (var n = 0u; n < ${PER_LANE}; n++) {
    let e = own_lane + ${LANES} * n;
    for (var k = 0u; k < ${SIDE}; k++) { sums[n] = fma(half_at(x, e / ${SIDE}, k), half_at(w, k, e % ${SIDE}), sums[n]); }
  }
  return sums;
}`;

/** Where number n of an emulated matrix of sums is, in an array of f32 or of vec4u. */
const sumAt = (isVectors: boolean, name: string, at: string, stride: string) =>
  isVectors
    ? `${name}[${at} + e / ${SIDE} * ${stride} + e % ${SIDE} / 4][e % 4]`
    : `${name}[${at} + e / ${SIDE} * ${stride} + e % ${SIDE}]`;

const eachSum = (text: string) => `for (var n = 0u; n < ${PER_LANE}; n++) { let e = own_lane + ${LANES} * n; ${text} }`;

function emulate(kernel: Kernel): Kernel {
  if (!kernel.enable?.includes('chromium_experimental_subgroup_matrix')) return kernel;
  const factors = factorsOf(kernel.body);
  const isVectors = (name: string) => kernel.body.includes(`${name}: array<vec4u`);
  const body = kernel.body
    .replace(
      'fn main(group: vec3u, lane: u32, subgroup: u32) {',
      main => `${emulation(factors)}\n${main}\n  own_lane = lane % ${LANES};`,
    )
    .replace('lane: u32, subgroup: u32) {', `lane: u32) {\n  let subgroup = lane / ${LANES};`)
    .replaceAll(
      /(\w+) = subgroupMatrixLoad<subgroup_matrix_result<[^(]+>\(&(\w+), (.+), (\w+)\);/g,
      (_, sums, from, at, stride) => eachSum(`${sums}[n] = bitcast<f32>(${sumAt(isVectors(from), from, at, stride)});`),
    )
    .replaceAll(
      /subgroupMatrixLoad<[^(]+, (row|col)_major>\(&(\w+), (.+?), (\d+)\)/g,
      (_, order, from, at, stride) => `vec4u(${factors.indexOf(from)}, ${at}, ${stride}, ${order === 'col' ? 1 : 0})`,
    )
    .replaceAll(/(query\d+) = (vec4u\(.*\));/g, '$1 = keep($2);')
    .replaceAll(/subgroup_matrix_left<[^>]+>/g, 'Kept')
    .replaceAll(/subgroup_matrix_result<[^>]+>/g, 'Sums')
    .replaceAll('subgroupMatrixMultiplyAccumulate(query', 'multiply_kept(query')
    .replaceAll('subgroupMatrixMultiplyAccumulate', 'multiply')
    .replaceAll(/subgroupMatrixStore<row_major>\(&(\w+), (.+), (\w+), ([\w.]+)\);/g, (_, to, at, sums, stride) =>
      eachSum(`${sumAt(isVectors(to), to, at, stride)} = ${isVectors(to) ? 'bitcast<u32>' : 'f32'}(${sums}[n]);`),
    )
    .replaceAll('bitcast<vec2h>(two)', 'unpack2x16float(two)')
    .replaceAll(/return bitcast<u32>\((fma|code)(.*)\);/g, 'return pack2x16float($1$2);')
    .replaceAll('vec2h', 'vec2f')
    .replaceAll(/f16\((scale|low)\)/g, '$1')
    .replaceAll('.0h', '.0');
  return { ...kernel, body, subgroupId: false, enable: ['subgroups'] };
}

class EmulatingGpu extends Gpu {
  override run(kernel: Kernel, ...rest: [readonly number[], readonly GPUBuffer[], readonly number[]]): void {
    super.run(emulate(kernel), ...rest);
  }
}

export async function openWithMatrices(options: Partial<WebGpuOptions> = {}): Promise<WebGpuDevice> {
  const { device, info } = await openAdapter(options.limits);
  const gpu = new EmulatingGpu(device, info.packedDots);
  return new WebGpuDevice(gpu, { ...info, matrices: true }, { ...SMALL_SHAPE, ...options });
}
