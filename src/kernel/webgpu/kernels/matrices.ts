/**
 * Matrix products by subgroup matrices of halves, for the rows of prompts. Weights become halves on their way into
 * workgroup memory, rows do before (`toHalves`), and sums are floats that stay in registers over the whole row. A sum runs
 * over the columns in order, so a row has the same bits in any company here; they are not those of matmul.ts, whose rows
 * are int8. So rows of prompts always come here, even one alone, and others never (products.ts).
 *
 * Within every four columns the order is 0, 2, 1, 3, on both sides: so two codes are masked out of a word at once.
 */
import type { Kernel } from '../gpu.ts';
import { BUNDLE } from '../weights.ts';
import { interfaceOf, type Matmul, nameOf, weightsText } from './matmul.ts';
import { pickMatrix, severalInterface, severalText } from './several.ts';
import { each } from './text.ts';

/** Weight rows and rows of a tile, and of the part of it that a subgroup has. Its invocations divide four times the rows. */
export interface MatrixTile {
  outs: number;
  rows: number;
  subOuts: number;
  subRows: number;
}

/** Rows and columns of a matrix, and lanes of a subgroup. */
const SIDE = 16;
export const MATRIX_LANES = 32;
/** Vectors of four words from one row of a block to the next: one more than it has, so that eight are in different banks. */
const STRIDE = 5;

const subgroupsOf = ({ outs, rows, subOuts, subRows }: MatrixTile) => (outs / subOuts) * (rows / subRows);

const HALVES_SIZE = 256;

/** Four values an invocation. */
export const toHalves: Kernel = {
  name: 'halves',
  params: ['first', 'fours'],
  buffers: ['x: array<vec4f>', 'write xh: array<vec2u>'],
  size: HALVES_SIZE,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let n = (group.y * 65535 + group.x) * ${HALVES_SIZE} + lane;
  if (n >= p.fours) { return; }
  let v = clamp(x[p.first + n], vec4f(-65504.0), vec4f(65504.0));
  xh[p.first + n] = vec2u(pack2x16float(v.xz), pack2x16float(v.yw));
}`,
};

/** Eight codes as halves. A code in the last bits of 1024 is 1024 more, exactly. */
function valuesText({ format }: Matmul): string {
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
 * A tile a workgroup, a block at a time: the next one is asked for before the products of this one are made. It is not put
 * beside this one, since the memory that it takes would leave fewer workgroups on a processor.
 */
export function matmulMatrices(m: Matmul, tile: MatrixTile, count = 1): Kernel {
  const { outs: N, rows: R, subOuts, subRows } = tile;
  const T = MATRIX_LANES * subgroupsOf(tile);
  const across = N / subOuts;
  const [I, J] = [subRows / SIDE, subOuts / SIDE];
  // With groups of 16, a half of a block has a scale and a minimum of its own.
  const [scales, lows] = m.format.integer!.group === 32 ? ['xx', 'yy'] : ['xy', 'zw'];
  /** Blocks of weights and vectors of rows that an invocation brings: numbers lane, T + lane and so on of the tile's. */
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
      ${each(I, i => `let x${i} = ${load('left', 'row_major', 'xs', `(ownRow + ${SIDE * i}) * ${STRIDE} + ${2 * half}`)};`)}
      ${each(
        J,
        j => `{
        let w = ${load('right', 'col_major', 'ws', `(ownOut + ${SIDE * j}) * ${STRIDE} + ${2 * half}`)};
        ${each(I, i => `sum${i}_${j} = subgroupMatrixMultiplyAccumulate(x${i}, w, sum${i}_${j});`)}
      }`,
      )}
    }`;
  const stored = (i: number, j: number) => `
  workgroupBarrier();
  subgroupMatrixStore<row_major>(&result, team * ${SIDE * SIDE}, sum${i}_${j}, ${SIDE});
  workgroupBarrier();
  for (var n = lane % ${MATRIX_LANES}; n < ${SIDE * SIDE}; n += ${MATRIX_LANES}) {
    store(firstOut + ownOut + ${SIDE * j} + n % ${SIDE}, firstRow + ownRow + ${SIDE * i} + n / ${SIDE}, result[team * ${SIDE * SIDE} + n]);
  }`;
  const { params, buffers } =
    count > 1 ? severalInterface(['xh: array<vec4u>'], count) : interfaceOf(m, ['xh: array<vec4u>']);
  return {
    name: `matmul ${nameOf(m)} matrices ${Object.values(tile).join(' ')}${count > 1 ? ` of ${count}` : ''}`,
    params: [...params, 'first'],
    buffers,
    size: T,
    teams: true,
    enable: ['f16', 'subgroups', 'chromium_experimental_subgroup_matrix'],
    body: /* wgsl */ `
${count > 1 ? severalText(m, count) : weightsText(m)}
${valuesText(m)}
var<workgroup> ws: array<vec4u, ${N * STRIDE}>;
var<workgroup> xs: array<vec4u, ${R * STRIDE}>;
var<workgroup> result: array<f32, ${subgroupsOf(tile) * SIDE * SIDE}>;
fn main(group: vec3u, lane: u32, team: u32) {
  ${pickMatrix(count, N)}
  let firstRow = p.first + group.y * ${R};
  let ownOut = team % ${across} * ${subOuts};
  let ownRow = team / ${across} * ${subRows};
  ${each(
    W,
    k => `let o${k} = min(firstOut + lane + ${T * k}, outs - 1);
  let from${k} = o${k} / ${BUNDLE} * p.blocks;
  let r${k} = o${k} % ${BUNDLE};
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
