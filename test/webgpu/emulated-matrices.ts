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

const half = (name: string) => /* wgsl */ `
fn half_of_${name}(at: u32, i: u32) -> f32 {
  let both = unpack2x16float(${name}[at + i / 8][i / 2 % 4]);
  return select(both.x, both.y, i % 2 == 1);
}`;

/** A factor is its place in workgroup memory: offset and stride. */
const emulation = /* wgsl */ `
alias Sums = array<f32, ${PER_LANE}>;
var<private> own_lane: u32;
${half('xs')}
${half('ws')}
fn multiply(x: vec2u, w: vec2u, before: Sums) -> Sums {
  var sums = before;
  for (var n = 0u; n < ${PER_LANE}; n++) {
    let e = own_lane + ${LANES} * n;
    for (var k = 0u; k < ${SIDE}; k++) {
      sums[n] = fma(half_of_xs(x.x + e / ${SIDE} * x.y, k), half_of_ws(w.x + e % ${SIDE} * w.y, k), sums[n]);
    }
  }
  return sums;
}`;

function emulate(kernel: Kernel): Kernel {
  if (!kernel.enable?.includes('chromium_experimental_subgroup_matrix')) return kernel;
  const body = kernel.body
    .replace(
      'fn main(group: vec3u, lane: u32, subgroup: u32) {',
      main => `${emulation}\n${main}\n  own_lane = lane % ${LANES};`,
    )
    .replace('lane: u32, subgroup: u32) {', `lane: u32) {\n  let subgroup = lane / ${LANES};`)
    .replaceAll(/subgroupMatrixLoad<[^(]+>\(&\w+, /g, 'vec2u(')
    .replaceAll(/subgroup_matrix_result<[^>]+>/g, 'Sums')
    .replaceAll('subgroupMatrixMultiplyAccumulate', 'multiply')
    .replaceAll(
      /subgroupMatrixStore<row_major>\(&(\w+), (.+), (\w+), ([\w.]+)\);/g,
      (_, to, at, sums, stride) =>
        `for (var n = 0u; n < ${PER_LANE}; n++) { let e = own_lane + ${LANES} * n; ${to}[${at} + e / ${SIDE} * ${stride} + e % ${SIDE}] = ${sums}[n]; }`,
    )
    .replaceAll('bitcast<vec2h>(two)', 'unpack2x16float(two)')
    .replaceAll(/return bitcast<u32>\((fma|code)(.*)\);/g, 'return pack2x16float($1$2);')
    .replaceAll('vec2h', 'vec2f')
    .replaceAll(/f16\((scale|low)\)/g, '$1')
    .replaceAll('.0h', '.0');
  return { ...kernel, body, subgroupId: false, enable: undefined };
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
