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

/** Weight rows and rows of a tile, and of the part of it that a subgroup has. */
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

/** Bytes of workgroup memory: two blocks of every row, and a matrix a subgroup. */
export const matrixBytes = (tile: MatrixTile): number =>
  2 * 16 * STRIDE * (tile.outs + tile.rows) + 4 * SIDE * SIDE * subgroupsOf(tile);

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

/** A tile a workgroup, a block at a time: the next one is asked for before the products of this one are made. */
export function matmulMatrices(m: Matmul, tile: MatrixTile, count = 1): Kernel {
  const { outs: N, rows: R, subOuts, subRows } = tile;
  const T = MATRIX_LANES * subgroupsOf(tile);
  const across = N / subOuts;
  const [I, J] = [subRows / SIDE, subOuts / SIDE];
  // With groups of 16, a half of a block has a scale and a minimum of its own.
  const [scales, lows] = m.format.integer!.group === 32 ? ['xx', 'yy'] : ['xy', 'zw'];
  /** Weights and rows that an invocation brings: numbers lane, T + lane, ... of the tile's, weights before rows. */
  const brought = Array.from({ length: Math.ceil((N + R) / T) }, (_, k) => ({ k, first: k * T }));
  const share = ({ first }: { first: number }, weights: string, row: string) => {
    const some = first + T <= N + R ? `{ ${row} }` : `if (lane < ${N + R - first}) { ${row} }`;
    if (first + T <= N) return `{ ${weights} }`;
    return first >= N ? some : `if (lane < ${N - first}) { ${weights} } else ${some}`;
  };
  const forAll = (text: (b: { k: number; first: number }) => string) => brought.map(text).join('\n    ');
  const fetch = (block: string) =>
    forAll(b =>
      share(
        b,
        `weights${b.k} = load_weights(from${b.k} + ${block}, r${b.k});`,
        `let at = 4 * (from${b.k} + ${block}); ${each(4, i => `row${b.k}_${i} = xh[at + ${i}];`, ' ')}`,
      ),
    );
  const keep = (side: string) =>
    forAll(b =>
      share(
        b,
        `let to = (${side} * ${N} + lane + ${b.first}) * ${STRIDE};
      let w = weights${b.k};
      let scale = w.scale.${scales};
      let low = w.scale.${lows};
      ws[to] = values(w.a.xy, scale.x, low.x);
      ws[to + 1] = values(w.a.zw, scale.x, low.x);
      ws[to + 2] = values(w.b.xy, scale.y, low.y);
      ws[to + 3] = values(w.b.zw, scale.y, low.y);`,
        `let to = (${side} * ${R} + lane + ${b.first} - ${N}) * ${STRIDE}; ${each(4, i => `xs[to + ${i}] = row${b.k}_${i};`, ' ')}`,
      ),
    );
  const load = (kind: 'left' | 'right', order: string, from: string, at: string) =>
    `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${SIDE}, ${SIDE}>, ${order}>(&${from}, ${at}, ${STRIDE})`;
  const products = (half: number) => `{
      ${each(I, i => `let x${i} = ${load('left', 'row_major', 'xs', `(now * ${R} + ownRow + ${SIDE * i}) * ${STRIDE} + ${2 * half}`)};`)}
      ${each(
        J,
        j => `{
        let w = ${load('right', 'col_major', 'ws', `(now * ${N} + ownOut + ${SIDE * j}) * ${STRIDE} + ${2 * half}`)};
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
var<workgroup> ws: array<vec4u, ${2 * N * STRIDE}>;
var<workgroup> xs: array<vec4u, ${2 * R * STRIDE}>;
var<workgroup> result: array<f32, ${subgroupsOf(tile) * SIDE * SIDE}>;
fn main(group: vec3u, lane: u32, team: u32) {
  ${pickMatrix(count, N)}
  let firstRow = p.first + group.y * ${R};
  let ownOut = team % ${across} * ${subOuts};
  let ownRow = team / ${across} * ${subRows};
  ${forAll(
    b => `var weights${b.k}: Weights; ${each(4, i => `var row${b.k}_${i}: vec4u;`, ' ')}
  var from${b.k}: u32; var r${b.k}: u32;
  ${share(
    b,
    `let o = min(firstOut + lane + ${b.first}, outs - 1); from${b.k} = o / ${BUNDLE} * p.blocks; r${b.k} = o % ${BUNDLE};`,
    `from${b.k} = min(firstRow + lane + ${b.first} - ${N}, p.inputs - 1) * p.blocks;`,
  )}`,
  )}
  ${each(I, i => each(J, j => `var sum${i}_${j}: subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>;`, ' '))}
  ${fetch('0u')}
  ${keep('0u')}
  for (var block = 0u; block < p.blocks; block++) {
    let now = block & 1;
    let next = min(block + 1, p.blocks - 1);
    workgroupBarrier();
    ${fetch('next')}
    ${each(2, products)}
    ${keep('(1 - now)')}
  }
  ${each(I, i => each(J, j => stored(i, j)))}
}`,
  };
}
