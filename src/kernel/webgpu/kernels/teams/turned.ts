/**
 * Queries for keys that are relative to their page: turned back to where the page begins, taken into the domain and made
 * int8 words, page by page, before the pages are read. A workgroup has a KV head and up to 16 pages of a sequence.
 *
 * Of a pair (x, y) of dims, turned by an angle whose cosine and sine are c and s, a map with numbers e and o makes
 * e (c x + s y) + o (c y - s x) = c (e x + o y) + s (e y - o x). What is in brackets is the same for all pages, so a lane
 * with a coded dim makes it once for eight of them.
 *
 * Words of a page, of vectors of four queries: one a word of the key part, then their scale, then what is added to dots.
 */

import type { Fragment } from '../../../fragment.ts';
import type { Kernel } from '../../gpu.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import { each, NEAREST, turnAbout } from '../text.ts';
import { blockOf } from '../turn.ts';
import { vectors, type Words } from './attend.ts';
import { SIZE, TEAMS, talk } from './talk.ts';

/** Pages of a workgroup: two teams have eight of them, and every other 64th coded dim. */
export const TURNED_PAGES = 16;
const PAGES = TURNED_PAGES / 2;
const DIMS = SIZE / 2;
/** Lanes that have a page in the end. */
const OF_PAGE = SIZE / TURNED_PAGES;
/** Words of an item: row, rows, place of the first page, places between rows, pages, number of the first page. */
export const TURNED_ITEM = 6;

/** Numbers of a page's words, a vector of queries each. */
export const pageWords = (most: number, group: number): number => (most + 2) * vectors(group);

/** What a key part takes of these words. */
export function turnedPart(words: Words, { group: G, kvHeads }: AttendShape) {
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
    text: /* wgsl */ `
fn turned_at(item: u32, head: u32, row: u32, page: u32) -> u32 {
  let state = data[item + 5] + min(row, data[item + 1] - 1) * data[item + 6];
  return ((state * ${TEAMS} + page) * ${kvHeads} + head) * ${pageWords(words.most, G)};
}`,
    begin: (Q: number) => `
  ${each(Q / G, r => `let turned${r} = turned_at(item, head, ${r}u, page);`)}
  ${each(vectors(Q), v => `let turned_scale${v} = bitcast<vec4f>(${word(Q, `${words.most}`, v)}); let turned_added${v} = bitcast<vec4f>(${word(Q, `${words.most + 1}`, v)});`)}`,
    word,
  };
}

/** A workgroup in z has a vector of queries. */
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
  const rounds = Math.ceil(C / DIMS);
  const number = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  const unroll = blocks.every(size => size % 8 === 0) ? 4 : 1;
  // Two pages a vector. One more, so that pairs lie in different banks.
  const turnRow = TURNED_PAGES / 2 + 1;
  const byteRow = C / 4 + 1;
  const both = (even: string, odd: string, pair: string) => `
          let x = query[2 * (${pair})]; let y = query[2 * (${pair}) + 1];
          let a = fma(vec4f(${even}), x, ${odd} * y); let b = fma(vec4f(${even}), y, -(${odd} * x));`;
  /** Adds what a pair gives a coded dim, to all eight pages. */
  const addPair = (k: number, even: string, odd: string, pair: string) => `{
          ${both(even, odd, pair)}
          ${each(
            PAGES / 2,
            t => `{ let by = bitcast<vec4f>(room[(${pair}) * ${turnRow} + first_page / 2 + ${t}]);
            z${k}_${2 * t} = fma(a, vec4f(by.x), fma(b, vec4f(by.y), z${k}_${2 * t}));
            z${k}_${2 * t + 1} = fma(a, vec4f(by.z), fma(b, vec4f(by.w), z${k}_${2 * t + 1})); }`,
          )}
        }`;
  const mapped = (k: number) =>
    matrix
      ? `let block = block_of(n);
      for (var pair = block.x / 2; pair < block.y / 2; pair += ${unroll}) {
        ${each(2 * unroll, u => `let map${u} = ${number(`${perHead ? `head * ${C * D} + ` : ''}(2 * pair + ${u}) * ${C} + n`)};`)}
        ${each(unroll, u => addPair(k, `map${2 * u}`, `map${2 * u + 1}`, `pair + ${u}`))}
      }`
      : addPair(k, 'f32(1 - n % 2)', 'f32(n % 2)', 'n / 2');
  /** Of each round and page. */
  const all = (text: (k: number, t: number) => string) => each(rounds, k => each(PAGES, t => text(k, t), ' '));
  const topOf = (page: string) =>
    `max(tops[${page} / ${PAGES}][0][${page} % ${PAGES}], tops[${page} / ${PAGES}][1][${page} % ${PAGES}])`;
  const body = /* wgsl */ `
${talk(together)}
// Of every pair of dims, those of four queries.
var<workgroup> query: array<vec4f, ${D}>;
// At first the turns, [pair][page]; then the bytes of four queries, [page][coded dim], and one that is zero.
var<workgroup> room: array<vec4u, ${Math.max((D / 2) * turnRow, TURNED_PAGES * byteRow)}>;
var<workgroup> tops: array<array<array<vec4f, ${PAGES}>, 2>, 2>;
${matrix ? blockOf(blocks) : ''}
fn byte_of(page: u32, dim: u32) -> u32 { return room[page * ${byteRow} + dim / 4][dim % 4]; }
fn main(group: vec3u, own: u32) {
  lane = own % ${LANES};
  team = own / ${LANES};
  let item = p.table + p.items + ${TURNED_ITEM} * group.x;
  let head = group.y;
  let pages = data[item + 4];
  let first_page = own / ${DIMS} * ${PAGES};
  // Which page is a lane's in the end.
  let page = own / ${OF_PAGE};
  ${words.count}
  for (var row = 0u; row < data[item + 1]; row++) {
    workgroupBarrier();
    for (var pair = own; pair < ${D / 2}; pair += ${SIZE}) {
      let from_query = ((data[item] + row) * ${H} + head * ${G}) * ${D / 2} + pair;
      ${each(4, q => `let both${q} = q_pairs[from_query + min(4 * group.z + ${q}, ${G - 1}) * ${D / 2}] * p.scale;`)}
      query[2 * pair] = vec4f(both0.x, both1.x, both2.x, both3.x);
      query[2 * pair + 1] = vec4f(both0.y, both1.y, both2.y, both3.y);
    }
    for (var at = own; at < ${(TURNED_PAGES / 2) * (D / 2)}; at += ${SIZE}) {
      let two = at / ${D / 2};
      let pair = at % ${D / 2};
      var turn = vec4f(1.0, 0.0, 1.0, 0.0);
      if (pair < ${pairs}) {
        turn = vec4f(${each(2, e => `turns[(data[item + 5] + min(2 * two + ${e}, pages - 1)) * ${pairs} + pair]`, ', ')});
      }
      room[pair * ${turnRow} + two] = bitcast<vec4u>(turn);
    }
    workgroupBarrier();
    var added = vec4f(0.0);
    ${
      mean
        ? `for (var pair = own % ${OF_PAGE}; pair < ${D / 2}; pair += ${OF_PAGE}) {
      let mean_at = ${matrix?.length ?? 0} + head * ${D} + 2 * pair;
      let even = ${number('mean_at')}; let odd = ${number('mean_at + 1')};
      ${both('even', 'odd', 'pair')}
      let two = bitcast<vec4f>(room[pair * ${turnRow} + page / 2]);
      let by = select(two.xy, two.zw, page % 2 == 1);
      added = fma(a, vec4f(by.x), fma(b, vec4f(by.y), added));
    }`
        : ''
    }
    ${all((k, t) => `var z${k}_${t} = vec4f(0.0);`)}
    ${each(
      rounds,
      k => `{
      let n = own % ${DIMS} + ${DIMS * k};
      if (n < ${C}) {
        ${mapped(k)}
        let step = ${words.step('n')};
        ${each(PAGES, t => `z${k}_${t} *= step;`, ' ')}
      }
    }`,
    )}
    ${each(
      PAGES,
      t => `{
      let top = largest(${Array.from({ length: rounds }, (_, k) => `abs(z${k}_${t})`).reduce((a, b) => `max(${a}, ${b})`)});
      if (lane == 0) { tops[team / 2][team % 2][${t}] = top; }
    }`,
    )}
    workgroupBarrier();
    ${each(
      PAGES,
      t => `{
      let top = ${topOf(`(first_page + ${t})`)};
      let unit = select(vec4f(0.0), 127.0 / top, top > vec4f(0.0));
      ${each(
        rounds,
        k => `{
        let n = own % ${DIMS} + ${DIMS * k};
        let bytes = bitcast<vec4u>(z${k}_${t} * unit + ${NEAREST}) & vec4u(255);
        if (n < ${C}) { room[(first_page + ${t}) * ${byteRow} + n / 4][n % 4] = (bytes.x | (bytes.y << 8u)) | ((bytes.z << 16u) | (bytes.w << 24u)); }
      }`,
      )}
    }`,
    )}
    if (own < ${TURNED_PAGES}) { room[own * ${byteRow} + ${C / 4}] = vec4u(0); }
    workgroupBarrier();
    let scale = ${topOf('page')} * ${1 / 127};
    let to = (((data[item + 2] + row * data[item + 3]) + page) * ${kvHeads} + head) * ${pageWords(words.most, G)} + group.z;
    for (var n = own % ${OF_PAGE}; n < count; n += ${OF_PAGE}) {
      let dims = ${words.dims('n')};
      ${each(4, k => `let x${k} = byte_of(page, dims[${k}]);`)}
      ${turnAbout}
      if (page < pages) { words[to + n * ${V}] = vec4u(y0, y1, y2, y3); }
      ${
        words.twice
          ? `let twice = ${words.twice('n')};
      added = fma(vec4f(vec4i(${each(4, q => `dot4I8Packed(y${q}, twice)`, ', ')})), scale * 0.5, added);`
          : ''
      }
    }
    for (var by = 1u; by < ${OF_PAGE}; by *= 2) { added += across(added, by); }
    if (own % ${OF_PAGE} == 0 && page < pages) {
      words[to + ${words.most * V}] = bitcast<vec4u>(scale);
      words[to + ${(words.most + 1) * V}] = bitcast<vec4u>(added);
    }
  }
}`;
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
