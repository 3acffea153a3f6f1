/**
 * Matrix products of many rows: a workgroup has a tile of weight rows by rows, so that what it reads of either serves
 * many products. Sums run in the order of matmul.ts.
 *
 * Where the adapter multiplies matrices of int8 by subgroups, a block's products are made so: they are exact, and what
 * scales make of them is the same arithmetic as everywhere.
 */
import type { Kernel } from '../gpu.ts';
import { BUNDLE, type GpuFormat } from '../weights.ts';
import { interfaceOf, type Matmul, nameOf, PARTS, part, takesInt8, textOf } from './matmul.ts';
import { each } from './text.ts';

const SIZE = 256;

export interface Tile {
  /** Weight rows and rows that an invocation multiplies with each other: a sixteenth of the tile's. */
  outs: number;
  rows: number;
}

/**
 * A tile a workgroup, block by block: what it needs of the next one is asked for before the products of this one are made,
 * and put beside it. Its invocations stand 16 by 16, a subgroup of 32 in 8 by 4 of them so that it reads few addresses.
 */
export const matmulTile = (m: Matmul, { outs, rows }: Tile): Kernel => {
  const [N, R] = [16 * outs, 16 * rows];
  const sides = takesInt8(m) ? 2 : 1;
  const fetch = (block: string) => `
      if (lane < ${N}) { nextWeights = load_weights(weightBlock + ${block}, o % ${BUNDLE}); }
      else if (lane < ${N + R}) { nextInput = load_input(inputBlock + ${block}); }`;
  const keep = (side: string) => `
      if (lane < ${N}) { weights[${side} * ${N} + lane] = nextWeights; }
      else if (lane < ${N + R}) { input[${side} * ${R} + lane - ${N}] = nextInput; }`;
  const turn = (text: string) => (sides === 2 ? text : '0u');
  return {
    name: `matmul ${nameOf(m)} tile ${N} x ${R}`,
    ...interfaceOf(m),
    size: SIZE,
    body: /* wgsl */ `
${textOf(m)}
${part}
var<workgroup> weights: array<Weights, ${sides * N}>;
var<workgroup> input: array<Input, ${sides * R}>;
fn main(group: vec3u, lane: u32) {
  let x = lane % 8 + lane / 32 % 2 * 8;
  let y = lane / 8 % 4 + lane / 64 * 4;
  let firstOut = group.x * ${N};
  let firstRow = group.y * ${R};
  let o = min(firstOut + lane, p.rows - 1);
  let weightBlock = o / ${BUNDLE} * p.blocks;
  let inputBlock = min(firstRow + lane - ${N}, p.inputs - 1) * p.blocks;
  var nextWeights: Weights;
  var nextInput: Input;
  ${each(outs * rows, i => `var total${i} = 0.0;`)}
  ${fetch('0u')}
  ${keep('0u')}
  for (var n = 0u; n < ${PARTS}; n++) {
    ${each(outs * rows, i => `var acc${i} = 0.0;`)}
    for (var block = part(n); block < part(n + 1); block++) {
      let now = ${turn('block & 1')};
      workgroupBarrier();
      ${fetch('min(block + 1, p.blocks - 1)')}
      ${each(outs, j => `let w${j} = weights[now * ${N} + x + ${16 * j}];`)}
      ${each(rows, i => `{ let i = input[now * ${R} + y + ${16 * i}]; ${each(outs, j => `acc${outs * i + j} = term(acc${outs * i + j}, w${j}, i);`)} }`)}
      ${sides === 2 ? '' : 'workgroupBarrier();'}
      ${keep(turn('(1 - now)'))}
    }
    ${each(outs * rows, i => `total${i} += acc${i};`)}
  }
  ${each(outs * rows, i => `store(firstOut + x + ${16 * (i % outs)}, firstRow + y + ${16 * Math.floor(i / outs)}, total${i});`)}
}`,
  };
};

/** Weight rows of a tile of `matmulMatrices`. */
export const MATRIX_OUT = 64;

/** Whether subgroup matrices can make the products: a block has one scale. */
export const suitsMatrices = (m: Matmul) => takesInt8(m) && m.format.integer!.group === 32;

/**
 * A tile of 64 weight rows by `rows` rows (32, 64 or 128), by 8 subgroups. A block a round: the products of its codes go
 * through workgroup memory, where invocations find four of them at a time and apply the scales; meanwhile the next block
 * is on its way. Rows of codes lie 48 bytes apart, so that 8 of them are in different banks.
 */
export const matmulMatrices = (m: Matmul, rows: number): Kernel => {
  const N = MATRIX_OUT;
  const { minima } = m.format.integer!;
  const own = rows / 16;
  /** Of the products of a row, in vectors: one more than there are. */
  const stride = N / 4 + 1;
  const tile = (k: number) => `
      let x${k} = subgroupMatrixLoad<subgroup_matrix_left<i8, 32, 16>, row_major>(&xs, (now * ${rows} + 16 * (team / 4 + ${2 * k})) * 3, 3);
      subgroupMatrixStore<row_major>(&products, 16 * (team / 4 + ${2 * k}) * ${stride} + team % 4 * 4, subgroupMatrixMultiply<i32>(x${k}, w), ${stride});`;
  return {
    name: `matmul ${nameOf(m)} matrices ${rows}`,
    ...interfaceOf(m),
    enable: ['subgroups', 'chromium_experimental_subgroup_matrix'],
    size: SIZE,
    body: /* wgsl */ `
${textOf(m)}
${part}
var<workgroup> ws: array<vec4u, ${2 * N * 3}>;
var<workgroup> xs: array<vec4u, ${2 * rows * 3}>;
var<workgroup> ws_scale: array<vec4f, ${(2 * N) / 4}>;
var<workgroup> ws_minimum: array<vec4f, ${(2 * N) / 4}>;
/** Of a row's block: its scale, and its scale times its sum. */
var<workgroup> xs_scale: array<vec2f, ${2 * rows}>;
var<workgroup> products: array<vec4i, ${rows * stride}>;

fn main(group: vec3u, lane: u32, team: u32) {
  let firstOut = group.x * ${N};
  let firstRow = group.y * ${rows};
  // Invocations from 0 on fetch weight rows, from ${N} on rows, the last ones the scales of four weight rows each.
  let o = min(firstOut + select(lane, 4 * (lane - ${SIZE - N / 4}), lane >= ${SIZE - N / 4}), p.rows - 1);
  let weightBlock = o / ${BUNDLE} * p.blocks;
  let inputBlock = min(firstRow + lane - ${N}, p.inputs - 1) * p.blocks;
  var a: vec4u;
  var b: vec4u;
  var c: vec4f;
  var d: vec4f;
  let column = lane % 16;
  let row = lane / 16;
  ${each(own, i => `var total${i} = vec4f(0);`)}
  ${fetch(m.format, rows, '0u')}
  ${keep(rows, '0u')}
  for (var n = 0u; n < ${PARTS}; n++) {
    ${each(own, i => `var acc${i} = vec4f(0);`)}
    for (var block = part(n); block < part(n + 1); block++) {
      let now = block & 1;
      workgroupBarrier();
      ${fetch(m.format, rows, 'min(block + 1, p.blocks - 1)')}
      let w = subgroupMatrixLoad<subgroup_matrix_right<i8, 16, 32>, col_major>(&ws, (now * ${N} + 16 * (team % 4)) * 3, 3);
      ${each(own / 2, tile)}
      workgroupBarrier();
      let scale = ws_scale[now * ${N / 4} + column];
      ${minima ? `let minimum = ws_minimum[now * ${N / 4} + column];` : ''}
      ${each(
        own,
        i => `{
        let s = xs_scale[now * ${rows} + row + ${16 * i}];
        acc${i} = fma(scale * s.x, vec4f(products[(row + ${16 * i}) * ${stride} + column]), acc${i});
        ${minima ? `acc${i} = fma(minimum, vec4f(s.y), acc${i});` : ''}
      }`,
      )}
      ${keep(rows, '(1 - now)')}
    }
    ${each(own, i => `total${i} += acc${i};`)}
  }
  ${each(own, i => each(4, j => `store(firstOut + 4 * column + ${j}, firstRow + row + ${16 * i}, total${i}[${j}]);`))}
}`,
  };
};

/** What an invocation brings of a block, into registers. */
function fetch({ integer }: GpuFormat, rows: number, block: string): string {
  const { zero } = integer!;
  // Four codes less their zero, without a borrow from one to the next.
  const lowered = (x: string) =>
    zero ? `((${x} | vec4u(0x80808080u)) - vec4u(${zero * 0x01010101}u)) ^ vec4u(0x80808080u)` : x;
  return /* wgsl */ `
      if (lane < ${MATRIX_OUT}) {
        let w = load_weights(weightBlock + ${block}, o % ${BUNDLE});
        a = ${lowered('w.a')};
        b = ${lowered('w.b')};
      } else if (lane < ${MATRIX_OUT + rows}) {
        let i = load_input(inputBlock + ${block});
        a = i.a;
        b = i.b;
        c = vec4f(i.scale, i.scale * f32(i.sums.x + i.sums.y), 0, 0);
      } else if (lane >= ${SIZE - MATRIX_OUT / 4}) {
        let r = o % ${BUNDLE};
        ${each(4, k => `let s${k} = load_scale(weightBlock + ${block}, r + ${k});`)}
        c = vec4f(s0.x, s1.x, s2.x, s3.x);
        d = vec4f(s0.y, s1.y, s2.y, s3.y);
      }`;
}

/** From registers into workgroup memory. */
const keep = (rows: number, side: string) => /* wgsl */ `
      if (lane < ${MATRIX_OUT}) {
        ws[(${side} * ${MATRIX_OUT} + lane) * 3] = a;
        ws[(${side} * ${MATRIX_OUT} + lane) * 3 + 1] = b;
      } else if (lane < ${MATRIX_OUT + rows}) {
        xs[(${side} * ${rows} + lane - ${MATRIX_OUT}) * 3] = a;
        xs[(${side} * ${rows} + lane - ${MATRIX_OUT}) * 3 + 1] = b;
        xs_scale[${side} * ${rows} + lane - ${MATRIX_OUT}] = c.xy;
      } else if (lane >= ${SIZE - MATRIX_OUT / 4}) {
        ws_scale[${side} * ${MATRIX_OUT / 4} + lane - ${SIZE - MATRIX_OUT / 4}] = c;
        ws_minimum[${side} * ${MATRIX_OUT / 4} + lane - ${SIZE - MATRIX_OUT / 4}] = d;
      }`;
