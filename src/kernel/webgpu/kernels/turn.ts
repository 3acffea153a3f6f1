/**
 * Queries for keys that are relative to their page: turned back to where the page begins, then taken into the domain,
 * page by page. `turns` has the cosine and sine of every pair at the start of every page.
 */
import type { Fragment } from '../../fragment.ts';
import { SIZE } from './attend.ts';
import type { PageShape } from './read.ts';

export function turning(fragment: Fragment, { headDim: D }: PageShape, perHead: boolean) {
  const { codedDim: C, matrix, mean, turn, block = D } = fragment;
  const pairs = turn!.length;
  const number = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  const product = (from: string, first: string, count: number) =>
    `for (var i = 0u; i < ${count}; i++) { sum = fma(${number(`${from} + i`)}, turned[q * ${D} + ${first} + i], sum); }`;
  const place = `${perHead ? `head * ${C * D} + ` : ''}n * ${D} + first`;
  return {
    /** Of a key part. */
    part: {
      words: D,
      taken: D,
      load: () => 'raw[at] = bitcast<f32>(queries[origin + n]) * p.scale;',
      buffers: ['turns: array<vec2f>'],
    },
    loaded: 2 * D,
    text: (Q: number) => `var<workgroup> raw: array<f32, ${Q * D}>;\nvar<workgroup> turned: array<f32, ${Q * D}>;`,
    /** Ends with `store` for every coded dim n of every query q, as `sum`, and `constant` for what a mean adds. */
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
    for (var at = lane; at < ${Q * C}; at += ${SIZE}) {
      let q = at / ${C};
      let n = at % ${C};
      var sum = 0.0;
      ${matrix ? `let first = n / ${block} * ${block};\n      ${product(place, 'first', block)}` : `sum = turned[q * ${D} + n];`}
      ${store}
    }
    if (lane < ${Q}) {
      let q = lane;
      var sum = 0.0;
      ${mean ? product(`${matrix?.length ?? 0} + head * ${D}`, '0', D) : ''}
      ${constant}
    }`,
  };
}
