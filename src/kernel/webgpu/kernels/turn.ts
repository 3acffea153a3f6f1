/**
 * Queries for keys that are relative to their page: turned back to where the page begins, then taken into the domain,
 * page by page. `turns` has the cosine and sine of every pair at the start of every page.
 */

import type { Fragment } from '../../fragment.ts';
import { type PageShape, SIZE } from './shape.ts';
import { each } from './text.ts';

export function turning(fragment: Fragment, { headDim: D }: PageShape, perHead: boolean) {
  const { codedDim: C, matrix, mean, turn, blocks = [D] } = fragment;
  const pairs = turn!.length;
  const number = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  const unroll = blocks.every(size => size % 8 === 0) ? 8 : 1;
  // The map comes turned about (tables.ts), so that neighbours read neighbours.
  const mapAt = (i: string) => number(`${perHead ? `head * ${C * D} + ` : ''}(${i}) * ${C} + n`);
  return {
    /** Of a key part. */
    part: {
      words: D,
      taken: D,
      load: () => 'raw[at] = bitcast<f32>(queries[origin + n]) * p.scale;',
      buffers: ['turns: array<vec2f>'],
    },
    text: (Q: number) => `var<workgroup> raw: array<f32, ${Q * D}>;
var<workgroup> turned: array<f32, ${Q * D}>;
var<workgroup> means: array<vec4f, ${Q * 8}>;
${matrix ? blockOf(blocks) : ''}`,
    /** Does `store` for every coded dim n of every query q, as `sum`, and in the end `constant` for what a mean adds. */
    begin: (Q: number, store: string, constant: string) => /* wgsl */ `
    for (var n = lane; n < ${(Q * D) / 2}; n += ${SIZE}) {
      let pair = n % ${D / 2};
      var both = vec2f(raw[2 * n], raw[2 * n + 1]);
      if (pair < ${pairs}) {
        let turn = turns[(data[item + 7] + page) * ${pairs} + pair];
        both = vec2f(fma(both.x, turn.x, both.y * turn.y), fma(both.y, turn.x, -(both.x * turn.y)));
      }
      turned[2 * n] = both.x;
      turned[2 * n + 1] = both.y;
    }
    workgroupBarrier();
    for (var n = lane; n < ${C}; n += ${SIZE}) {
      ${each(Q, q => `var sum${q} = 0.0;`, ' ')}
      ${
        matrix
          ? `let block = block_of(n);
      for (var i = block.x; i < block.y; i += ${unroll}) {
        ${each(unroll, u => `let map${u} = ${mapAt(`i + ${u}`)};`)}
        ${each(Q, q => each(unroll, u => `sum${q} = fma(map${u}, turned[${q * D} + i + ${u}], sum${q});`, ' '))}
      }`
          : each(Q, q => `sum${q} = turned[${q * D} + n];`, ' ')
      }
      ${each(Q, q => `{ let q = ${q}u; let sum = sum${q}; ${store} }`)}
    }
    ${
      mean
        ? `for (var at = lane; at < ${Q * 32}; at += ${SIZE}) {
      var sum = 0.0;
      for (var i = at % 32; i < ${D}; i += 32) {
        sum = fma(${number(`${matrix?.length ?? 0} + head * ${D} + i`)}, turned[at / 32 * ${D} + i], sum);
      }
      means[at / 4][at % 4] = sum;
    }`
        : ''
    }
    workgroupBarrier();
    if (lane < ${Q}) {
      let q = lane;
      var all = means[8 * q];
      for (var n = 1u; n < 8; n++) { all += means[8 * q + n]; }
      let sum = (all.x + all.y) + (all.z + all.w);
      ${constant}
    }`,
  };
}

/** First dim and end of the block of dim n. */
export function blockOf(blocks: readonly number[]): string {
  const lines: string[] = [];
  let first = 0;
  for (let b = 0; b < blocks.length; ) {
    const [start, size] = [first, blocks[b]];
    while (blocks[b] === size) {
      first += size;
      b++;
    }
    lines.push(
      `if (n < ${first}) { let at = ${start} + (n - ${start}) / ${size} * ${size}; return vec2u(at, at + ${size}); }`,
    );
  }
  return `fn block_of(n: u32) -> vec2u {\n  ${lines.join('\n  ')}\n  return vec2u(0);\n}`;
}
