/**
 * Page-relative queries as int8 words: rotated back (RoPE) to where each page begins and transformed, page by page,
 * before the pages are read. A workgroup has one KV head and up to 16 pages of a sequence.
 *
 * For a pair (x, y) of dims rotated by an angle with cosine c and sine s, matrix elements e and o give e (c x + s y) +
 * o (c y - s x) = c (e x + o y) + s (e y - o x). The brackets are the same for all pages, so a lane computes them once
 * per coded dim, for eight pages.
 *
 * Layout of a page, in vec4s of queries: one per query word of the key stage, then the scale, then the offset of
 * scores.
 */

import type { PageLayout } from '../../../page-layout.ts';
import { f32, type Kernel, readBuffer, u32, writeBuffer } from '../../kernel.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { blockOf, PAGE_ROTATIONS } from '../page-relative.ts';
import { ROUND_MAGIC, transpose4x4Bytes } from '../snippets.ts';
import { unroll } from '../unroll.ts';
import { PAGE_ITEM, QUERY_ITEM } from '../work-items.ts';
import type { QueryWords } from './attend.ts';
import { SCRATCH, vectors } from './names.ts';
import { SUBGROUPS, subgroupFunctions, WORKGROUP_SIZE } from './subgroup.ts';

/** Pages per workgroup: two subgroups have eight of them each, and every other 64th coded dim. */
export const PAGES_PER_WORKGROUP = 16;
const PAGES = PAGES_PER_WORKGROUP / 2;
const DIMS = WORKGROUP_SIZE / 2;
/** Lanes per page in the end. */
const LANES_PER_PAGE = WORKGROUP_SIZE / PAGES_PER_WORKGROUP;

/** vec4s per page. */
export const queryVectorsPerPage = (maxWords: number, group: number): number => (maxWords + 2) * vectors(group);

/** How a key stage loads these words. */
export function loadQueryWords(words: QueryWords, { group: G, kvHeads }: AttendShape) {
  const V = vectors(G);
  /** Word n of the queries in vec4 `$v`. */
  const word = (Q: number, n: string) => {
    const vector = (q: string) => `queries[query_words$(${q} / ${G}) + (${n}) * ${V} + $(${q} % ${G} / 4)]`;
    if (G % 4 === 0) return vector('4 * v');
    const last = Q - 1;
    const component = (k: number) =>
      `${vector(`min(4 * v + ${k}, ${last})`)}[$(min(4 * v + ${k}, ${last}) % ${G} % 4)]`;
    return `vec4u(${[0, 1, 2, 3].map(component).join(', ')})`;
  };
  return {
    text: /* wgsl */ `
fn query_words_at(item: u32, head: u32, row: u32, page: u32) -> u32 {
  let state = ${PAGE_ITEM.at.firstState} + min(row, ${PAGE_ITEM.at.rows} - 1) * ${PAGE_ITEM.at.stateStride};
  return ((state * ${SUBGROUPS} + page) * ${kvHeads} + head) * ${queryVectorsPerPage(words.maxWords, G)};
}`,
    begin: (Q: number) => `
  @unroll(r, ${Q / G}) let query_words$r = query_words_at(item, head, $ru, page);
  @unroll(v, ${vectors(Q)}) {
    let query_scale$v = bitcast<vec4f>(${word(Q, `${words.maxWords}`)});
    let query_offset$v = bitcast<vec4f>(${word(Q, `${words.maxWords + 1}`)});
  }`,
    word,
  };
}

/** Workgroups in z have a vec4 of queries each. */
export function pageRelativeQueries(
  name: string,
  layout: PageLayout,
  words: QueryWords,
  shape: AttendShape,
  perHead: boolean,
): Kernel {
  const { headDim: D, group: G, kvHeads, subgroupSize } = shape;
  const { codedDim: C, queryMatrix, mean, ropeFrequencies, diagonalBlocks = [D] } = layout;
  const V = vectors(G);
  const H = G * kvHeads;
  const pairs = ropeFrequencies!.length;
  const hasSubgroups = subgroupSize === LANES;
  const rounds = Math.ceil(C / DIMS);
  const tableFloat = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  const unrolled = diagonalBlocks.every(size => size % 8 === 0) ? 4 : 1;
  // Two pages per vector. Padded by one, to avoid bank conflicts.
  const rotationStride = PAGES_PER_WORKGROUP / 2 + 1;
  const byteStride = C / 4 + 1;
  const both = (even: string, odd: string, pair: string) => `
          let x = query[2 * (${pair})];
          let y = query[2 * (${pair}) + 1];
          let a = fma(vec4f(${even}), x, ${odd} * y);
          let b = fma(vec4f(${even}), y, -(${odd} * x));`;
  /** Adds the contribution of a pair to coded dim `$k`, for all eight pages. */
  const addPair = (even: string, odd: string, pair: string) => `{
          ${both(even, odd, pair)}
          @unroll(t, ${PAGES / 2}) {{
            let by = bitcast<vec4f>(${SCRATCH}[(${pair}) * ${rotationStride} + first_page / 2 + $t]);
            z$k_$(2 * t) = fma(a, vec4f(by.x), fma(b, vec4f(by.y), z$k_$(2 * t)));
            z$k_$(2 * t + 1) = fma(a, vec4f(by.z), fma(b, vec4f(by.w), z$k_$(2 * t + 1)));
          }}
        }`;
  const matrixAt = `${perHead ? `head * ${C * D} + ` : ''}(2 * pair + $u) * ${C} + n`;
  const addPairs = queryMatrix
    ? `let block = block_of(n);
      for (var pair = block.x / 2; pair < block.y / 2; pair += ${unrolled}) {
        @unroll(u, ${2 * unrolled}) let matrix$u = ${tableFloat(matrixAt)};
        @unroll(u, ${unrolled}) {${addPair('matrix$(2 * u)', 'matrix$(2 * u + 1)', 'pair + $u')}}
      }`
    : addPair('f32(1 - n % 2)', 'f32(n % 2)', 'n / 2');
  const topOf = (page: string) =>
    `max(tops[${page} / ${PAGES}][0][${page} % ${PAGES}], tops[${page} / ${PAGES}][1][${page} % ${PAGES}])`;
  const body = unroll(/* wgsl */ `
${subgroupFunctions(hasSubgroups)}
// Per dim, the values of four queries.
var<workgroup> query: array<vec4f, ${D}>;
// First the rotations, [pair][page]; then the bytes of four queries, [page][coded dim], and a zero.
var<workgroup> ${SCRATCH}: array<vec4u, ${Math.max((D / 2) * rotationStride, PAGES_PER_WORKGROUP * byteStride)}>;
var<workgroup> tops: array<array<array<vec4f, ${PAGES}>, 2>, 2>;
${queryMatrix ? blockOf(diagonalBlocks) : ''}
fn byte_of(page: u32, dim: u32) -> u32 { return ${SCRATCH}[page * ${byteStride} + dim / 4][dim % 4]; }
fn main(group: vec3u, local_index: u32) {
  lane = local_index % ${LANES};
  subgroup = local_index / ${LANES};
  let item = p.table + p.items + ${QUERY_ITEM.words} * group.x;
  let head = group.y;
  let pages = ${QUERY_ITEM.at.pages};
  let first_page = local_index / ${DIMS} * ${PAGES};
  // The page of a lane in the end.
  let page = local_index / ${LANES_PER_PAGE};
  ${words.count}
  for (var row = 0u; row < ${QUERY_ITEM.at.rows}; row++) {
    workgroupBarrier();
    for (var pair = local_index; pair < ${D / 2}; pair += ${WORKGROUP_SIZE}) {
      let from_query = ((${QUERY_ITEM.at.row} + row) * ${H} + head * ${G}) * ${D / 2} + pair;
      @unroll(q, 4) let both$q = q_pairs[from_query + min(4 * group.z + $q, ${G - 1}) * ${D / 2}] * p.scale;
      query[2 * pair] = vec4f(both0.x, both1.x, both2.x, both3.x);
      query[2 * pair + 1] = vec4f(both0.y, both1.y, both2.y, both3.y);
    }
    for (var at = local_index; at < ${(PAGES_PER_WORKGROUP / 2) * (D / 2)}; at += ${WORKGROUP_SIZE}) {
      let two = at / ${D / 2};
      let pair = at % ${D / 2};
      var rotation = vec4f(1.0, 0.0, 1.0, 0.0);
      if (pair < ${pairs}) {
        rotation = vec4f(
          @list(e, 2, ${PAGE_ROTATIONS}[(${QUERY_ITEM.at.firstPage} + min(2 * two + $e, pages - 1)) * ${pairs} + pair]));
      }
      ${SCRATCH}[pair * ${rotationStride} + two] = bitcast<vec4u>(rotation);
    }
    workgroupBarrier();
    var added = vec4f(0.0);
    ${
      mean
        ? `for (var pair = local_index % ${LANES_PER_PAGE}; pair < ${D / 2}; pair += ${LANES_PER_PAGE}) {
      let mean_at = ${queryMatrix?.length ?? 0} + head * ${D} + 2 * pair;
      let even = ${tableFloat('mean_at')}; let odd = ${tableFloat('mean_at + 1')};
      ${both('even', 'odd', 'pair')}
      let two = bitcast<vec4f>(${SCRATCH}[pair * ${rotationStride} + page / 2]);
      let by = select(two.xy, two.zw, page % 2 == 1);
      added = fma(a, vec4f(by.x), fma(b, vec4f(by.y), added));
    }`
        : ''
    }
    @unroll(k, ${rounds}) @unroll(t, ${PAGES}) var z$k_$t = vec4f(0.0);
    @unroll(k, ${rounds}) {{
      let n = local_index % ${DIMS} + $(${DIMS} * k);
      if (n < ${C}) {
        ${addPairs}
        let step = ${words.step('n')};
        @unroll(t, ${PAGES}) z$k_$t *= step;
      }
    }}
    @unroll(t, ${PAGES}) {{
      let top = reduce_max(${Array.from({ length: rounds }, (_, k) => `abs(z${k}_$t)`).reduce((a, b) => `max(${a}, ${b})`)});
      if (lane == 0) { tops[subgroup / 2][subgroup % 2][$t] = top; }
    }}
    workgroupBarrier();
    @unroll(t, ${PAGES}) {{
      let top = ${topOf('(first_page + $t)')};
      let unit = select(vec4f(0.0), 127.0 / top, top > vec4f(0.0));
      @unroll(k, ${rounds}) {{
        let n = local_index % ${DIMS} + $(${DIMS} * k);
        let bytes = bitcast<vec4u>(z$k_$t * unit + ${ROUND_MAGIC}) & vec4u(255);
        if (n < ${C}) {
          ${SCRATCH}[(first_page + $t) * ${byteStride} + n / 4][n % 4] = (bytes.x | (bytes.y << 8u)) | ((bytes.z << 16u) | (bytes.w << 24u));
        }
      }}
    }}
    if (local_index < ${PAGES_PER_WORKGROUP}) { ${SCRATCH}[local_index * ${byteStride} + ${C / 4}] = vec4u(0); }
    workgroupBarrier();
    let scale = ${topOf('page')} * ${1 / 127};
    let to = (((${QUERY_ITEM.at.target} + row * ${QUERY_ITEM.at.targetStride}) + page) * ${kvHeads} + head)
      * ${queryVectorsPerPage(words.maxWords, G)} + group.z;
    for (var n = local_index % ${LANES_PER_PAGE}; n < count; n += ${LANES_PER_PAGE}) {
      let dims = ${words.dims('n')};
      @unroll(k, 4) let x$k = byte_of(page, dims[$k]);
      ${transpose4x4Bytes}
      if (page < pages) { words[to + n * ${V}] = vec4u(y0, y1, y2, y3); }
      ${
        words.twiceOffset
          ? `let twice_offset = ${words.twiceOffset('n')};
      added = fma(vec4f(vec4i(@list(q, 4, dot4I8Packed(y$q, twice_offset)))), scale * 0.5, added);`
          : ''
      }
    }
    for (var by = 1u; by < ${LANES_PER_PAGE}; by *= 2) { added += shuffle_xor(added, by); }
    if (local_index % ${LANES_PER_PAGE} == 0 && page < pages) {
      words[to + ${words.maxWords * V}] = bitcast<vec4u>(scale);
      words[to + ${(words.maxWords + 1) * V}] = bitcast<vec4u>(added);
    }
  }
}`);
  return {
    name: `page-relative queries ${name} ${G}/${kvHeads}${hasSubgroups ? ' subgroup ops' : ''}`,
    summary: 'Transforms the queries for each page, for keys stored relative to their page.',
    params: [...u32('table', 'items'), ...f32('scale'), ...u32('keyColumns')],
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('q_pairs', 'vec2f'),
      readBuffer(PAGE_ROTATIONS, 'vec2f'),
      readBuffer('keyTables', 'u32'),
      writeBuffer('words', 'vec4u'),
    ],
    size: WORKGROUP_SIZE,
    body,
    enable: hasSubgroups ? ['subgroups'] : [],
  };
}
