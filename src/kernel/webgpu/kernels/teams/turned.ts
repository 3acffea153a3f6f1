/**
 * Queries for keys that are relative to their page: turned back to where the page begins, taken into the domain and made
 * int8 words, page by page, before the pages are read. A workgroup has the pages of an item and a KV head, so that what it
 * reads of the map serves four of them; each team then makes the words of its page.
 *
 * Words of a page, of vectors of four queries: one a word of the key part, then their scale, then what is added to dots.
 */

import type { Fragment } from '../../../fragment.ts';
import type { Kernel } from '../../gpu.ts';
import { type AttendShape, ITEM } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import { each } from '../text.ts';
import { blockOf } from '../turn.ts';
import { vectorOf, vectors, type Words } from './attend.ts';
import { SIZE, TEAMS, talk } from './talk.ts';

/** Numbers of a page's words, a vector of queries each. */
export const pageWords = (most: number, group: number): number => (most + 2) * vectors(group);

/** Vector v of word n: of query vector `v` of row `row`, the words of this team's page begin at `turned_at(item, head, row)`. */
export const turnedAt = (most: number, { group, kvHeads }: AttendShape): string => /* wgsl */ `
fn turned_at(item: u32, head: u32, row: u32, page: u32) -> u32 {
  let state = data[item + 5] + min(row, data[item + 1] - 1) * data[item + 6];
  return ((state * ${TEAMS} + page) * ${kvHeads} + head) * ${pageWords(most, group)};
}`;

/** What a key part takes of these words. */
export function turnedPart(words: Words, shape: AttendShape) {
  const { group: G } = shape;
  const V = vectors(G);
  const whole = G % 4 === 0;
  /** Vector v of all queries, of word n. */
  const word = (Q: number, n: string, v: number) => {
    const one = (q: number) => `queries[turned${Math.floor(q / G)} + (${n}) * ${V} + ${(q % G) >> 2}]`;
    if (whole) return one(4 * v);
    return `vec4u(${each(
      4,
      k => {
        const q = Math.min(4 * v + k, Q - 1);
        return `${one(q)}[${(q % G) & 3}]`;
      },
      ', ',
    )})`;
  };
  return {
    part: { words: 0, loaded: 0, queries: 'array<vec4u>', load: () => '' },
    text: () => turnedAt(words.most, shape),
    begin: (Q: number) => `
  ${each(Q / G, r => `let turned${r} = turned_at(item, head, ${r}u, page);`)}
  ${each(vectors(Q), v => `let turned_scale${v} = bitcast<vec4f>(${word(Q, `${words.most}`, v)}); let turned_added${v} = bitcast<vec4f>(${word(Q, `${words.most + 1}`, v)});`)}`,
    word,
  };
}

export function turnPages(
  name: string,
  fragment: Fragment,
  words: Words,
  shape: AttendShape,
  perHead: boolean,
): Kernel {
  const { headDim: D, group: G, kvHeads, subgroups } = shape;
  const { codedDim: C, matrix, mean, turn, blocks = [D] } = fragment;
  const V = vectors(G);
  const H = G * kvHeads;
  const pairs = turn!.length;
  const together = subgroups === LANES;
  const number = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  const unroll = blocks.every(size => size % 8 === 0) ? 8 : 1;
  const all = (text: (t: number, v: number) => string) => each(TEAMS, t => each(V, v => text(t, v), ' '));
  const body = /* wgsl */ `
${talk(together)}
${turnedAt(words.most, shape)}
// [dim][page] of all queries: turned, then coded; a dim more is zero. A vector more, so that dims lie in different banks.
var<workgroup> numbers: array<array<vec4f, ${TEAMS * V + 1}>, ${Math.max(C, D) + 1}>;
${matrix ? blockOf(blocks) : ''}
${words.text}
fn main(group: vec3u, own: u32) {
  lane = own % ${LANES};
  team = own / ${LANES};
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  let pages = data[item + 3];
  ${words.count}
  for (var row = 0u; row < data[item + 1]; row++) {
    workgroupBarrier();
    for (var at = own; at < ${(TEAMS * D) / 2}; at += ${SIZE}) {
      let page = at % ${TEAMS};
      let pair = at / ${TEAMS};
      let from_query = ((data[item] + row) * ${H} + head * ${G}) * ${D / 2} + pair;
      ${each(G, q => `let both${q} = q_pairs[from_query + ${(q * D) / 2}] * p.scale;`, ' ')}
      var turn = vec2f(1.0, 0.0);
      if (pair < ${pairs}) { turn = turns[(data[item + 7] + min(page, pages - 1)) * ${pairs} + pair]; }
      ${each(
        V,
        v => `{
        let x = vec4f${vectorOf(G, v, q => `both${q}.x`)};
        let y = vec4f${vectorOf(G, v, q => `both${q}.y`)};
        numbers[2 * pair][page * ${V} + ${v}] = fma(x, vec4f(turn.x), y * turn.y);
        numbers[2 * pair + 1][page * ${V} + ${v}] = fma(y, vec4f(turn.x), -(x * turn.y));
      }`,
      )}
    }
    workgroupBarrier();
    ${each(V, v => `var added${v} = vec4f(0.0);`, ' ')}
    ${
      mean
        ? `for (var i = lane; i < ${D}; i += ${LANES}) {
      let middle = ${number(`${matrix?.length ?? 0} + head * ${D} + i`)};
      ${each(V, v => `added${v} = fma(vec4f(middle), numbers[i][team * ${V} + ${v}], added${v});`, ' ')}
    }`
        : ''
    }
    ${each(
      Math.ceil(C / SIZE),
      k => `let n${k} = own + ${k * SIZE};
    ${all((t, v) => `var sum${k}_${t}_${v} = vec4f(0.0);`)}
    if (n${k} < ${C}) {
      let n = n${k};
      ${
        matrix
          ? `let block = block_of(n);
      for (var i = block.x; i < block.y; i += ${unroll}) {
        ${each(unroll, u => `let map${u} = ${number(`${perHead ? `head * ${C * D} + ` : ''}(i + ${u}) * ${C} + n`)};`)}
        ${each(unroll, u => all((t, v) => `sum${k}_${t}_${v} = fma(vec4f(map${u}), numbers[i + ${u}][${t * V + v}], sum${k}_${t}_${v});`))}
      }`
          : all((t, v) => `sum${k}_${t}_${v} = numbers[n][${t * V + v}];`)
      }
    }`,
    )}
    workgroupBarrier();
    ${each(
      Math.ceil(C / SIZE),
      k =>
        `if (n${k} < ${C}) { let n = n${k}; let step = ${words.step('n')}; ${all((t, v) => `numbers[n][${t * V + v}] = sum${k}_${t}_${v} * step;`)} }`,
    )}
    if (own < ${TEAMS * V}) { numbers[${C}][own] = vec4f(0.0); }
    workgroupBarrier();
    ${
      words.share > 0
        ? `for (var n = lane; n < ${C}; n += ${LANES}) { ${each(V, v => `added${v} = fma(vec4f(${words.share}), numbers[n][team * ${V} + ${v}], added${v});`, ' ')} }`
        : ''
    }
    ${each(V, v => `var top${v} = vec4f(0.0);`, ' ')}
    for (var n = lane; n < count; n += ${LANES}) {
      let dims = ${words.dims('n')};
      let factor = ${words.factor('n')};
      ${each(V, v => `top${v} = max(top${v}, factor * max(max(abs(number_of(dims.x, ${v})), abs(number_of(dims.y, ${v}))), max(abs(number_of(dims.z, ${v})), abs(number_of(dims.w, ${v})))));`)}
    }
    ${each(V, v => `top${v} = largest(top${v}); added${v} = sum_of(added${v}); let unit${v} = select(vec4f(0.0), 127.0 / top${v}, top${v} > vec4f(0.0));`)}
    let to = turned_at(item, head, row, team);
    for (var n = lane; n < select(0u, count, team < pages); n += ${LANES}) {
      let dims = ${words.dims('n')};
      let factor = ${words.factor('n')};
      ${each(
        V,
        v => `{
        let by = factor * unit${v};
        let x = vec4i(round(number_of(dims.x, ${v}) * by)); let y = vec4i(round(number_of(dims.y, ${v}) * by));
        let z = vec4i(round(number_of(dims.z, ${v}) * by)); let w = vec4i(round(number_of(dims.w, ${v}) * by));
        words[to + n * ${V} + ${v}] = vec4u(${each(4, q => `pack4xI8(vec4i(x[${q}], y[${q}], z[${q}], w[${q}]))`, ', ')});
      }`,
      )}
    }
    if (lane == 0 && team < pages) {
      ${each(V, v => `words[to + ${words.most * V + v}] = bitcast<vec4u>(top${v} / 127.0); words[to + ${(words.most + 1) * V + v}] = bitcast<vec4u>(added${v});`)}
    }
  }
}
fn number_of(dim: u32, v: u32) -> vec4f { return numbers[dim][team * ${V} + v]; }`;
  return {
    name: `prepare pages ${name} ${G}/${kvHeads}${together ? ' together' : ''}`,
    params: ['table', 'items', 'scale: f32', 'keyColumns'],
    buffers: [
      'data: array<u32>',
      'q_pairs: array<vec2f>',
      'turns: array<vec2f>',
      'keyTables: array<u32>',
      'write words: array<vec4u>',
    ],
    size: SIZE,
    body,
    enable: together ? ['subgroups'] : [],
  };
}
