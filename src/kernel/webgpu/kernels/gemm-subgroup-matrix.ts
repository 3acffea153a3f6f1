/**
 * GEMM on subgroup matrices. Weights are dequantized to f16 on their way into workgroup memory, rows are converted before
 * (`convertToF16`), and f32 sums stay in registers. Unless they are split, sums run over the columns in order, so a row's
 * result does not depend on its batch; but it differs from that of gemv.ts, whose activations are int8. So prompt rows
 * always use this kernel, even a single one, and decoded rows only without `batchInvariant` (projections.ts).
 *
 * Every four columns are in the order 0, 2, 1, 3 on both sides: one mask then extracts two codes of a word.
 */

import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ROW_TILE } from '../weights.ts';
import { integerText, type MatmulVariant, matmulBindings, storeText, variantName } from './gemv.ts';
import { groupedBindings, groupedStore, groupedWeights, selectMatrix } from './grouped-gemm.ts';
import { unroll } from './unroll.ts';

/** Weight rows and rows per tile, and per subgroup. */
export interface MatrixTile {
  outs: number;
  rows: number;
  subgroupOuts: number;
  subgroupRows: number;
  /** Weight blocks in workgroup memory at a time. */
  blocks: number;
  /** Split-K: workgroups sum parts of the blocks into `partial`, and `addPartials` adds them. For few tiles. */
  split: boolean;
}

/** Rows and columns of a subgroup matrix, and lanes per subgroup. */
const SIDE = 16;
const SUBGROUP_SIZE = 32;
/** vec4u per row in workgroup memory: one more than its blocks have, so that eight rows lie in different banks. */
const strideOf = ({ blocks }: MatrixTile) => 4 * blocks + 1;

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
 * One tile per workgroup, a few blocks at a time; the next ones are loaded into registers meanwhile. No double buffering
 * in workgroup memory: that would leave fewer workgroups per processor.
 */
export function gemmSubgroupMatrix(m: MatmulVariant, tile: MatrixTile, count = 1): Kernel {
  const { outs: N, rows: R, subgroupOuts, subgroupRows, blocks: B, split } = tile;
  const T = SUBGROUP_SIZE * subgroupsOf(tile);
  const stride = strideOf(tile);
  const across = N / subgroupOuts;
  const [I, J] = [subgroupRows / SIDE, subgroupOuts / SIDE];
  // With groups of 16, each half of a block has its own scale and minimum.
  const [scales, lows] = m.format.integer!.group === 32 ? ['xx', 'yy'] : ['xy', 'zw'];
  /** For number `$k` x T + lane of `all`: weight rows, or vectors of rows. */
  const shared = (all: number, text: string) => `@unroll(k, ${Math.floor(all / T)}) {{ ${text} }}
    @unroll(k, ${Math.floor(all / T)}..${Math.ceil(all / T)}) if (lane < ${all % T}) { ${text} }`;
  const fetch = (block: string) => `
    ${shared(N, `@unroll(b, ${B}) weights$k_$b = load_weights(from$k + min(${block} + $b, p.blocks - 1), r$k);`)}
    ${shared(4 * B * R, `row$k = xh[4 * (row_from$k + min(${block} + part / 4, p.blocks - 1)) + part % 4];`)}`;
  const dequantize = `@unroll(b, ${B}) {{
      let to = (lane + $(${T} * k)) * ${stride} + $(4 * b);
      let w = weights$k_$b;
      let scale = w.scale.${scales};
      let low = w.scale.${lows};
      ws[to] = values(w.a.xy, scale.x, low.x);
      ws[to + 1] = values(w.a.zw, scale.x, low.x);
      ws[to + 2] = values(w.b.xy, scale.y, low.y);
      ws[to + 3] = values(w.b.zw, scale.y, low.y);
    }}`;
  // Rows past the last block are zeros.
  const kept = (block: string) => (B === 1 ? 'row$k' : `select(vec4u(), row$k, ${block} + part / 4 < p.blocks)`);
  const keep = (block: string) => `
    ${shared(N, dequantize)}
    ${shared(4 * B * R, `xs[(lane / ${4 * B} + $(${T / 4 / B} * k)) * ${stride} + part] = ${kept(block)};`)}`;
  const load = (kind: 'left' | 'right', order: string, from: string, at: string) =>
    `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${SIDE}, ${SIDE}>, ${order}>(&${from}, ${at}, ${stride})`;
  const products = `@unroll(h, ${2 * B}) {{
      @unroll(i, ${I}) let x$i = ${load('left', 'row_major', 'xs', `(subgroup_row + $(${SIDE} * i)) * ${stride} + $(2 * h)`)};
      @unroll(j, ${J}) {{
        let w = ${load('right', 'col_major', 'ws', `(subgroup_out + $(${SIDE} * j)) * ${stride} + $(2 * h)`)};
        @unroll(i, ${I}) sum$i_$j = subgroupMatrixMultiplyAccumulate(x$i, w, sum$i_$j);
      }}
    }}`;
  const stored = split
    ? `subgroupMatrixStore<row_major>(&partial, partial_at + $(${SIDE} * i) * p.columns + $(${SIDE} * j), sum$i_$j, p.columns);`
    : `
    workgroupBarrier();
    subgroupMatrixStore<row_major>(&result, subgroup * ${SIDE * SIDE}, sum$i_$j, ${SIDE});
    workgroupBarrier();
    for (var n = lane % ${SUBGROUP_SIZE}; n < ${SIDE * SIDE}; n += ${SUBGROUP_SIZE}) {
      store(
        firstOut + subgroup_out + $(${SIDE} * j) + n % ${SIDE}, firstRow + subgroup_row + $(${SIDE} * i) + n / ${SIDE},
        result[subgroup * ${SIDE * SIDE} + n]);
    }`;
  const input = [readBuffer('xh', 'vec4u')];
  const { params, buffers } = count > 1 ? groupedBindings(input, count) : matmulBindings(m, input);
  return {
    name: `gemm ${variantName(m)} subgroup matrices ${Object.values(tile).join(' ')}${count > 1 ? ` of ${count}` : ''}`,
    summary: 'GEMM on subgroup matrices: rows in f16, sums in f32.',
    params: [...params, ...u32('first'), ...(split ? u32('splitBlocks', 'columns', 'partialRows') : [])],
    buffers: split
      ? [...buffers.filter(({ access, name }) => access === 'read' && name !== 'bias'), writeBuffer('partial', 'f32')]
      : buffers,
    size: T,
    subgroupId: true,
    enable: ['f16', 'subgroups', 'chromium_experimental_subgroup_matrix'],
    body: unroll(/* wgsl */ `
${count > 1 ? groupedWeights(m, count) : integerText(m)}
${split ? '' : count > 1 ? groupedStore(count) : storeText(m)}
${dequantizeText(m)}
var<workgroup> ws: array<vec4u, ${N * stride}>;
var<workgroup> xs: array<vec4u, ${R * stride}>;
${split ? '' : `var<workgroup> result: array<f32, ${subgroupsOf(tile) * SIDE * SIDE}>;`}
fn main(group: vec3u, lane: u32, subgroup: u32) {
  ${selectMatrix(count, N)}
  let firstRow = p.first + group.y * ${R};
  let subgroup_out = subgroup % ${across} * ${subgroupOuts};
  let subgroup_row = subgroup / ${across} * ${subgroupRows};
  let part = lane % ${4 * B};
  @unroll(k, ${Math.ceil(N / T)}) {
    let o$k = min(firstOut + lane + $(${T} * k), outs - 1);
    let from$k = o$k / ${ROW_TILE} * p.blocks;
    let r$k = o$k % ${ROW_TILE};
    @unroll(b, ${B}) var weights$k_$b: Weights;
  }
  @unroll(k, ${Math.ceil((4 * B * R) / T)}) {
    let row_from$k = min(firstRow + lane / ${4 * B} + $(${T / 4 / B} * k), p.inputs - 1) * p.blocks;
    var row$k: vec4u;
  }
  @unroll(i, ${I}) @unroll(j, ${J}) var sum$i_$j: subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>;
  ${
    split
      ? `let begin = group.z * p.splitBlocks;
  let end = min(begin + p.splitBlocks, p.blocks);
  let partial_at = (group.z * p.partialRows + group.y * ${R} + subgroup_row) * p.columns + group.x * ${N} + subgroup_out;`
      : 'let begin = 0u; let end = p.blocks;'
  }
  ${fetch('begin')}
  ${keep('begin')}
  for (var block = begin; block < end; block += ${B}) {
    let next = block + ${B};
    workgroupBarrier();
    ${fetch('next')}
    ${products}
    workgroupBarrier();
    ${keep('next')}
  }
  @unroll(i, ${I}) @unroll(j, ${J}) { ${stored} }
}`),
  };
}

/** Adds the partial sums of split tiles of N weight rows in order: one tile and row per workgroup. */
export function addPartials(m: MatmulVariant, N: number, count = 1): Kernel {
  const input = [readBuffer('partial', 'f32')];
  const { params, buffers } = count > 1 ? groupedBindings(input, count) : matmulBindings(m, input);
  return {
    name: `add partial sums ${N} ${m.bias ? 'bias' : ''} ${count}`,
    summary: 'Adds the partial sums of a split matrix product.',
    params: [...params, ...u32('first', 'splits', 'columns', 'partialRows')],
    buffers: buffers.filter(({ name }) => /^(partial|bias|out)/.test(name)),
    size: N,
    body: /* wgsl */ `
${count > 1 ? `var<private> matrix: u32;\n${groupedStore(count)}` : storeText(m)}
fn main(group: vec3u, lane: u32) {
  ${selectMatrix(count, N)}
  var sum = 0.0;
  for (var n = 0u; n < p.splits; n++) {
    sum += partial[(n * p.partialRows + group.y) * p.columns + group.x * ${N} + lane];
  }
  if (firstOut + lane < outs) { store(firstOut + lane, p.first + group.y, sum); }
}`,
  };
}
