/**
 * GEMM on subgroup matrices, for prompt rows. Weights are dequantized to f16 on their way into workgroup memory, rows are
 * converted before (`convertToF16`), and f32 sums stay in registers. Sums run over the columns in order, so a row's result
 * does not depend on its batch; but it differs from that of gemv.ts, whose activations are int8. So prompt rows always
 * use this kernel, even a single one, and other rows never (projections.ts).
 *
 * Every four columns are in the order 0, 2, 1, 3 on both sides: one mask then extracts two codes of a word.
 */

import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ROW_TILE } from '../weights.ts';
import { type MatmulVariant, matmulBindings, variantName, weightsText } from './gemv.ts';
import { groupedBindings, groupedText, selectMatrix } from './grouped-gemm.ts';
import { each } from './snippets.ts';

/** Weight rows and rows per tile, and per subgroup. The invocations of a workgroup divide 4 * rows. */
export interface MatrixTile {
  outs: number;
  rows: number;
  subgroupOuts: number;
  subgroupRows: number;
}

/** Rows and columns of a subgroup matrix, and lanes per subgroup. */
const SIDE = 16;
export const SUBGROUP_SIZE = 32;
/** vec4u per row in workgroup memory: one more than a block has, so that eight rows lie in different banks. */
const STRIDE = 5;

const subgroupsOf = ({ outs, rows, subgroupOuts, subgroupRows }: MatrixTile) =>
  (outs / subgroupOuts) * (rows / subgroupRows);

const CONVERT_SIZE = 256;

export const convertToF16: Kernel = {
  name: 'convert to f16',
  summary: 'Converts activations to f16.',
  params: u32('first', 'fours'),
  buffers: [readBuffer('x', 'vec4f'), writeBuffer('xh', 'vec2u')],
  size: CONVERT_SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let n = (group.y * 65535 + group.x) * ${CONVERT_SIZE} + lane;
  if (n >= p.fours) { return; }
  let v = clamp(x[p.first + n], vec4f(-65504.0), vec4f(65504.0));
  xh[p.first + n] = vec2u(pack2x16float(v.xz), pack2x16float(v.yw));
}`,
};

/** Eight codes as f16: a code in the low bits of the f16 number 1024 is exactly 1024 + code. */
function dequantizeText({ format }: MatmulVariant): string {
  const { zero, minima } = format.integer!;
  const bytes = format.bits === 8;
  return /* wgsl */ `
fn values(codes: vec2u, scale: f32, low: f32) -> vec4u {
  let c = codes${bytes ? ' ^ vec2u(0x80808080u)' : ''};
  let even = (c & vec2u(0x00ff00ffu)) | vec2u(0x64006400u);
  let odd = ((c >> vec2u(8)) & vec2u(0x00ff00ffu)) | vec2u(0x64006400u);
  let s = vec2h(f16(scale));
  let l = vec2h(f16(low));
  return vec4u(value(even.x, s, l), value(odd.x, s, l), value(even.y, s, l), value(odd.y, s, l));
}
fn value(two: u32, scale: vec2h, low: vec2h) -> u32 {
  let code = bitcast<vec2h>(two) - vec2h(${1024 + (bytes ? 128 : zero)}.0h);
  return bitcast<u32>(${minima ? 'fma(code, scale, low)' : 'code * scale'});
}`;
}

/**
 * One tile per workgroup, one block at a time; the next block is loaded into registers meanwhile. No double buffering in
 * workgroup memory: that would leave fewer workgroups per processor.
 */
export function gemmSubgroupMatrix(m: MatmulVariant, tile: MatrixTile, count = 1): Kernel {
  const { outs: N, rows: R, subgroupOuts, subgroupRows } = tile;
  const T = SUBGROUP_SIZE * subgroupsOf(tile);
  const across = N / subgroupOuts;
  const [I, J] = [subgroupRows / SIDE, subgroupOuts / SIDE];
  // With groups of 16, each half of a block has its own scale and minimum.
  const [scales, lows] = m.format.integer!.group === 32 ? ['xx', 'yy'] : ['xy', 'zw'];
  /** Weight blocks and row vectors per invocation: number lane, T + lane, ... of the tile. */
  const [W, X] = [Math.ceil(N / T), Math.ceil((4 * R) / T)];
  const weights = (text: (k: number) => string) =>
    each(W, k => (T * (k + 1) <= N ? `{ ${text(k)} }` : `if (lane < ${N - T * k}) { ${text(k)} }`));
  const fetch = (block: string) => `
    ${weights(k => `weights${k} = load_weights(from${k} + ${block}, r${k});`)}
    ${each(X, k => `row${k} = xh[4 * (row_from${k} + ${block}) + lane % 4];`)}`;
  const keep = `
    ${weights(
      k => `
      let to = (lane + ${T * k}) * ${STRIDE};
      let w = weights${k};
      let scale = w.scale.${scales};
      let low = w.scale.${lows};
      ws[to] = values(w.a.xy, scale.x, low.x);
      ws[to + 1] = values(w.a.zw, scale.x, low.x);
      ws[to + 2] = values(w.b.xy, scale.y, low.y);
      ws[to + 3] = values(w.b.zw, scale.y, low.y);`,
    )}
    ${each(X, k => `xs[(lane / 4 + ${(T / 4) * k}) * ${STRIDE} + lane % 4] = row${k};`)}`;
  const load = (kind: 'left' | 'right', order: string, from: string, at: string) =>
    `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${SIDE}, ${SIDE}>, ${order}>(&${from}, ${at}, ${STRIDE})`;
  const products = (half: number) => `{
      ${each(I, i => `let x${i} = ${load('left', 'row_major', 'xs', `(subgroup_row + ${SIDE * i}) * ${STRIDE} + ${2 * half}`)};`)}
      ${each(
        J,
        j => `{
        let w = ${load('right', 'col_major', 'ws', `(subgroup_out + ${SIDE * j}) * ${STRIDE} + ${2 * half}`)};
        ${each(I, i => `sum${i}_${j} = subgroupMatrixMultiplyAccumulate(x${i}, w, sum${i}_${j});`)}
      }`,
      )}
    }`;
  const stored = (i: number, j: number) => `
  workgroupBarrier();
  subgroupMatrixStore<row_major>(&result, subgroup * ${SIDE * SIDE}, sum${i}_${j}, ${SIDE});
  workgroupBarrier();
  for (var n = lane % ${SUBGROUP_SIZE}; n < ${SIDE * SIDE}; n += ${SUBGROUP_SIZE}) {
    store(firstOut + subgroup_out + ${SIDE * j} + n % ${SIDE}, firstRow + subgroup_row + ${SIDE * i} + n / ${SIDE}, result[subgroup * ${SIDE * SIDE} + n]);
  }`;
  const { params, buffers } =
    count > 1 ? groupedBindings([readBuffer('xh', 'vec4u')], count) : matmulBindings(m, [readBuffer('xh', 'vec4u')]);
  return {
    name: `gemm ${variantName(m)} subgroup matrices ${Object.values(tile).join(' ')}${count > 1 ? ` of ${count}` : ''}`,
    summary: 'GEMM on subgroup matrices: prompt rows in f16, sums in f32.',
    params: [...params, ...u32('first')],
    buffers,
    size: T,
    subgroupId: true,
    enable: ['f16', 'subgroups', 'chromium_experimental_subgroup_matrix'],
    body: /* wgsl */ `
${count > 1 ? groupedText(m, count) : weightsText(m)}
${dequantizeText(m)}
var<workgroup> ws: array<vec4u, ${N * STRIDE}>;
var<workgroup> xs: array<vec4u, ${R * STRIDE}>;
var<workgroup> result: array<f32, ${subgroupsOf(tile) * SIDE * SIDE}>;
fn main(group: vec3u, lane: u32, subgroup: u32) {
  ${selectMatrix(count, N)}
  let firstRow = p.first + group.y * ${R};
  let subgroup_out = subgroup % ${across} * ${subgroupOuts};
  let subgroup_row = subgroup / ${across} * ${subgroupRows};
  ${each(
    W,
    k => `let o${k} = min(firstOut + lane + ${T * k}, outs - 1);
  let from${k} = o${k} / ${ROW_TILE} * p.blocks;
  let r${k} = o${k} % ${ROW_TILE};
  var weights${k}: Weights;`,
  )}
  ${each(X, k => `let row_from${k} = min(firstRow + lane / 4 + ${(T / 4) * k}, p.inputs - 1) * p.blocks; var row${k}: vec4u;`)}
  ${each(I, i => each(J, j => `var sum${i}_${j}: subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>;`, ' '))}
  ${fetch('0u')}
  ${keep}
  for (var block = 0u; block < p.blocks; block++) {
    let next = min(block + 1, p.blocks - 1);
    workgroupBarrier();
    ${fetch('next')}
    ${each(2, products)}
    workgroupBarrier();
    ${keep}
  }
  ${each(I, i => each(J, j => stored(i, j)))}
}`,
  };
}
