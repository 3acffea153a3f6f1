/**
 * Attention of a prompt's rows over pages, with subgroup matrices: a workgroup has one KV head, some pages of one sequence
 * (an item) and up to 64 queries, the query heads of many rows. Keys and values of 32 tokens at a time are decoded to f16
 * in workgroup memory, once for all queries:
 *
 *   1. scores         queries x keys, into workgroup memory
 *   2. probabilities  some lanes per query; meanwhile the values replace the keys
 *   3. output         probabilities x values, added to sums in registers
 *
 * Every codec is read through page-reader.ts. Where keys are relative to their page, queries are rotated and transformed
 * once per page, by matrices too. The result is a partial state {o, m, l} per query, like that of attend.ts.
 * A row's bits do not depend on the other rows: `m` is a maximum of its own scores, and the sums of a matrix product are
 * those of its row.
 */

import type { PageEncoding, PageLayout } from '../../page-layout.ts';
import { type Kernel, readBuffer, u32, usedBuffers, writeBuffer } from '../kernel.ts';
import { type AttendShape, capScores, MASKED } from './attend.ts';
import { pageStart, type Side } from './names.ts';
import { pageReader, type Reader, sequentialDims } from './page-reader.ts';
import { PAGE_ROTATIONS } from './page-relative.ts';
import { poolLoads } from './pool-loads.ts';
import { WORKGROUP_SIZE } from './shape.ts';
import { maxOf4 } from './snippets.ts';
import { firstRead, PAGE_BUFFERS, PAGE_PARAMS, pageOffsets } from './sources.ts';
import { COLUMN_WORDS, encodingTableOffset } from './tables.ts';
import { stateFloats } from './transform.ts';
import { unroll } from './unroll.ts';
import { PAGE_ITEM } from './work-items.ts';

/** Rows and columns of a subgroup matrix, and vec4s of its sums. */
const SIDE = 16;
const SUM_VECTORS = (SIDE * SIDE) / 4;
const SUBGROUP_SIZE = 32;
/** Tokens that are decoded at a time. */
const TOKENS = 32;
/** The four subgroups of a workgroup have two halves of the queries by two halves of the tokens, or dims. */
const HALVES = 2;
/** vec4s of scores, and vec4us of eight probabilities, per query: one more than needed, to avoid bank conflicts. */
const SCORE_STRIDE = TOKENS / 4 + 1;
const PROBABILITY_STRIDE = TOKENS / 8 + 1;
/** Probabilities are relative to a maximum that only follows if it is off by 2 to this power: sums are rescaled rarely. */
const SLACK = 8;

const LOG2E = `f32(${Math.fround(Math.LOG2E)})`;
const LN2 = `f32(${Math.fround(Math.LN2)})`;

/** Most queries first. */
const QUERIES = [64, 32];

/** A codec's pages; codecs of the same name have the same kernels. */
interface Pages {
  name: string;
  layout: PageLayout;
  perHead: boolean;
}

/** The kernels for a pair of codecs, by the rows of a workgroup, most first; none for pages that matrices cannot read. */
export function promptKernels(keys: Pages, values: Pages, shape: AttendShape): { rows: number; kernel(): Kernel }[] {
  const readable = [keys, values].every(
    ({ layout: { encoding, codedDim } }) =>
      !['oaken', 'spectrum'].includes(encoding.kind) && codedDim % (HALVES * SIDE) === 0,
  );
  const fitting = shape.headDim % SIDE === 0 && shape.pageTokens % TOKENS === 0;
  if (!readable || !fitting || (keys.layout.ropeFrequencies && !keys.layout.queryMatrix)) return [];
  return QUERIES.filter(queries => queries >= shape.group).map(queries => ({
    rows: Math.floor(queries / shape.group),
    kernel: () => attendPrompt(keys, values, shape, queries),
  }));
}

/** The matrix that transforms page-relative queries, as the kernel reads it: [dim][coded dim]. */
export const PAGE_MATRIX = 'page_matrix';

/** How a tile of 32 tokens lies in workgroup memory: by tokens, or by dims, whichever the reader has side by side. */
interface Tile {
  reader: Reader;
  encoding: PageEncoding;
  tableOffset: number;
  dims: number;
  pageTokens: number;
  /** vec4u, of eight values each, per token or dim. */
  stride: number;
  vectors: number;
}

function tileOf(side: Side, layout: PageLayout, shape: AttendShape): Tile {
  const reader = pageReader(side, layout, shape);
  const { codedDim: dims, encoding } = layout;
  const [lines, values] = reader.by === 'eight' ? [TOKENS, dims] : [dims, TOKENS];
  const stride = values / 8 + 1;
  const tableOffset = encodingTableOffset(layout);
  return { ...{ reader, encoding, tableOffset, dims, stride }, pageTokens: shape.pageTokens, vectors: lines * stride };
}

/** Statements that decode tile `tile` of a page. `scaled`: values are multiplied by the scales of their tokens. */
function decode(side: Side, tile: Tile, scaled: boolean): string {
  const { reader, encoding, dims, stride } = tile;
  if (encoding.kind === 'additive') return decodeAdditive(side, tile);
  const call = `${side}_${reader.by}(${pageStart(side)}, head,`;
  const rounds = (TOKENS * dims) / 8 / WORKGROUP_SIZE;
  const byScale = (text: string, scale: string) => (scaled ? `${text} * ${scale}` : text);
  if (reader.by === 'eight') {
    const row = dims / 8;
    return `@unroll(u, ${rounds}) {{
        let t = (lane + $(${WORKGROUP_SIZE} * u)) / ${row};
        let c = (lane + $(${WORKGROUP_SIZE} * u)) % ${row};
        let e = ${call} ${TOKENS} * tile + t, c);
        let scale = ${side}_scale[${TOKENS / 4} * tile + t / 4][t % 4];
        space[t * ${stride} + c] = as_f16(${byScale('e.low', 'scale')}, ${byScale('e.high', 'scale')});
      }}`;
  }
  const four = (g: string) => byScale(`${call} i, ${g})`, `${side}_scale[${g}]`);
  return `@unroll(u, ${rounds}) {{
        let i = (lane + $(${WORKGROUP_SIZE} * u)) / ${TOKENS / 8};
        let g = ${TOKENS / 4} * tile + 2 * (lane % ${TOKENS / 8});
        space[i * ${stride} + lane % ${TOKENS / 8}] = as_f16(${four('g')}, ${four('g + 1')});
      }}`;
}

/**
 * A lane has eight tokens of a quad of dims. Their codes are two words; an entry is a word of four bytes, with 128 for 0
 * (tables.ts).
 */
function decodeAdditive(side: Side, { dims, pageTokens, stride, tableOffset }: Tile): string {
  const word = (at: string) => `${side}Tables[${tableOffset} + ${at}]`;
  const column = (k: string) => word(`p.${side}Columns + column * ${COLUMN_WORDS} + ${k}`);
  const half = (j: number, i: string) => `pack2x16float(vec2f(e${2 * j}[${i}], e${2 * j + 1}[${i}]))`;
  return `for (var unit = lane; unit < ${dims}; unit += ${WORKGROUP_SIZE}) {
        let quad = unit / 4;
        let n = unit % 4;
        let end = ${word(`head * ${dims / 4} + quad + 1`)};
        @unroll(j, 8) var e$j = vec4f(0.0);
        for (var column = ${word(`head * ${dims / 4} + quad`)}; column < end; column++) {
          let unit_of_entries = bitcast<f32>(${column('1')});
          let codes = pool2[(${pageStart(side)} + ${pageTokens / 2} * column) / 8 + 2 * tile + n % 2] >> vec2u(4 * (n / 2));
          @unroll(j, 8) {{
            let entry = ${column('2 + ((codes[$(j / 4)] >> $(8 * (j % 4))u) & 15u)')};
            e$j = fma(vec4f(unpack4xU8(entry)) - 128.0, vec4f(unit_of_entries), e$j);
          }}
        }
        @unroll(i, 4)
          space[(4 * quad + $i) * ${stride} + n] = vec4u(${[0, 1, 2, 3].map(j => half(j, '$i')).join(', ')});
      }`;
}

/** The dim at place 8 c + 4 half of a decoded vector. */
const firstDim = ({ reader }: Tile, c: string, half: number): string =>
  (reader.dimOrder ?? sequentialDims).first(c, half);

const load = (kind: 'left' | 'right', order: 'row_major' | 'col_major', from: string, at: string, stride: number) =>
  `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${SIDE}, ${SIDE}>, ${order}>(&${from}, ${at}, ${stride})`;

const SUMS = `subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>`;

function attendPrompt(
  { name: keyName, layout: keys, perHead }: Pages,
  { name: valueName, layout: values }: Pages,
  shape: AttendShape,
  queries: number,
): Kernel {
  const { group: G, kvHeads, pageTokens: P, headDim: D } = shape;
  const H = G * kvHeads;
  const [key, value] = [tileOf('key', keys, shape), tileOf('value', values, shape)];
  const queryStride = key.dims / 8 + 1;
  const lanesPerQuery = WORKGROUP_SIZE / queries;
  /** Vectors of four scores per lane. */
  const ownFours = TOKENS / 4 / lanesPerQuery;
  const relative = keys.ropeFrequencies?.length;
  const centered = keys.meansOffset !== undefined;
  const hasMean = centered || (relative !== undefined && keys.mean !== undefined);
  /** Matrices of 16 queries, and of 16 dims of keys and values, per subgroup. */
  const [I, K, J] = [queries, key.dims, value.dims].map(n => n / HALVES / SIDE);
  // Workgroup memory: a tile, scores, probabilities; or the rotated queries, and a matrix of sums per subgroup.
  const scores = Math.max(key.vectors, value.vectors);
  const probabilities = scores + queries * SCORE_STRIDE;
  const rotatedStride = D / 8 + 1;
  const transformed = queries * rotatedStride;
  const space = Math.max(
    probabilities + queries * PROBABILITY_STRIDE,
    scores + 4 * SUM_VECTORS,
    relative === undefined ? 0 : transformed + 4 * SUM_VECTORS,
  );
  const keyPart = (k: string) =>
    key.reader.by === 'eight'
      ? load('right', 'col_major', 'space', `part * ${SIDE * key.stride} + $(2 * ${k})`, key.stride)
      : load('right', 'row_major', 'space', `$(${SIDE * key.stride} * ${k}) + part * 2`, key.stride);
  const valuePart = (k: string, j: string) =>
    value.reader.by === 'eight'
      ? load(
          'right',
          'row_major',
          'space',
          `$(${SIDE * value.stride} * ${k}) + part * ${2 * J} + $(2 * ${j})`,
          value.stride,
        )
      : load(
          'right',
          'col_major',
          'space',
          `(part * ${J} + $(${j})) * ${SIDE * value.stride} + $(2 * ${k})`,
          value.stride,
        );
  /** The queries of matrix `$i` of a subgroup. */
  const rowsOf = (from: string, start: number, stride: number, k: string) =>
    load('left', 'row_major', from, `${start} + (query_half * ${I} + $i) * ${SIDE * stride} + $(2 * ${k})`, stride);
  /** A matrix of sums in the part of a subgroup, from vector `start` on. */
  const stored = (sums: string, start: number) =>
    `subgroupMatrixStore<row_major>(&space, ${start} + subgroup * ${SUM_VECTORS}, ${sums}, ${SIDE / 4});`;
  /** Every lane has some vectors `at` of sums of the subgroup: number n, of query q. */
  const eachSum = (
    start: number,
    text: string,
  ) => `for (var n = lane % ${SUBGROUP_SIZE}; n < ${SUM_VECTORS}; n += ${SUBGROUP_SIZE}) {
          let at = ${start} + subgroup * ${SUM_VECTORS} + n;
          let q = (query_half * ${I} + $i) * ${SIDE} + n / ${SIDE / 4};
          ${text}
        }`;
  /** Scores of tokens 4 g to 4 g + 3 of the tile, to the base 2. */
  const score = (g: string) => `{
          s = fma(
            bitcast<vec4f>(space[${scores} + query * ${SCORE_STRIDE} + ${g}]), key_scale[${TOKENS / 4} * tile + ${g}], vec4f(mean_score));
          if (p.softcap > 0.0) { s = cap_scores(s); }
          if (some_hidden) {
            s = select(s, vec4f(${MASKED}), vec4i(${TOKENS} * i32(tile) + 4 * i32(${g})) + vec4i(0, 1, 2, 3) < vec4i(hidden));
          }
        }`;
  const queryRow = `(${PAGE_ITEM.at.row} + min(q / ${G}, rows - 1)) * ${H} + head * ${G} + q % ${G}`;
  const stateOf = (q: string) =>
    `((${PAGE_ITEM.at.firstState} + ${q} / ${G} * ${PAGE_ITEM.at.stateStride}) * ${H} + head * ${G} + ${q} % ${G}) * ${stateFloats(value.dims)}`;
  const loadQueries = `
  for (var at = lane; at < ${(queries * key.dims) / 8}; at += ${WORKGROUP_SIZE}) {
    let q = at / ${key.dims / 8};
    let c = at % ${key.dims / 8};
    let origin = (${queryRow}) * ${key.dims};
    queries_f16[q * ${queryStride} + c] =
      as_f16(query_four(origin + ${firstDim(key, 'c', 0)}, 1.0), query_four(origin + ${firstDim(key, 'c', 1)}, 1.0));
  }`;
  /** The mean of a page, in the order of the tile. */
  const loadPageMean = `
    for (var n = lane; n < ${key.dims / 4}; n += ${WORKGROUP_SIZE}) {
      let dim = select(${firstDim(key, 'n / 2', 0)}, ${firstDim(key, 'n / 2', 1)}, n % 2 == 1);
      let at = ${pageStart('key')} + ${keys.meansOffset} + 2 * (head * ${D} + min(dim, ${D - 4}u));
      mean[n] = select(vec4f(0.0), vec4f(@list(k, 4, read_f16(at + $(2 * k)))), dim < ${D});
    }`;
  const meanScore = (from: string, dims: number) => `
    for (var c = 0u; c < ${dims / 8}; c++) {
      let x = unpack_f16x8(${from} + c]);
      mean_score += dot(x.low, mean[2 * c]) + dot(x.high, mean[2 * c + 1]);
    }`;
  /** Queries rotated back to the start of the page, then transformed, 16 x 16 at a time. */
  const transformQueries = `
    for (var at = lane; at < ${(queries * D) / 8}; at += ${WORKGROUP_SIZE}) {
      let q = at / ${D / 8};
      let c = at % ${D / 8};
      let origin = (${queryRow}) * ${D} + 8 * c;
      let first = (${PAGE_ITEM.at.firstPage} + page) * ${relative} + 4 * c;
      space[q * ${rotatedStride} + c] = as_f16(
        @list(h, 2, rotate_back(query_four(origin + $(4 * h), p.scale), first + $(2 * h), 4 * c + $(2 * h))));
    }
    workgroupBarrier();
    ${hasMean ? meanScore(`space[query * ${rotatedStride}`, D) : ''}
    @unroll(j, ${K}) {
      @unroll(i, ${I}) dots$i = ${SUMS}();
      @unroll(k, ${D / SIDE}) {{
        let columns = ${load('right', 'row_major', PAGE_MATRIX, `matrix_at + $(${2 * key.dims} * k) + part * ${2 * K} + $(2 * j)`, key.dims / 8)};
        @unroll(i, ${I}) dots$i = subgroupMatrixMultiplyAccumulate(${rowsOf('space', 0, rotatedStride, 'k')}, columns, dots$i);
      }}
      @unroll(i, ${I}) {{
        ${stored('dots$i', transformed)}
        workgroupBarrier();
        let r = lane % ${SUBGROUP_SIZE} / 2;
        let at = ${transformed} + subgroup * ${SUM_VECTORS} + lane % ${SUBGROUP_SIZE} * 2;
        queries_f16[((query_half * ${I} + $i) * ${SIDE} + r) * ${queryStride} + (part * ${K} + $j) * 2 + lane % 2] =
          as_f16(bitcast<vec4f>(space[at]), bitcast<vec4f>(space[at + 1]));
        workgroupBarrier();
      }}
    }`;
  const body = unroll(/* wgsl */ `
var<private> bank: u32;
/** Eight f16 per vector, [query][place]. */
var<workgroup> queries_f16: array<vec4u, ${queries * queryStride}>;
var<workgroup> space: array<vec4u, ${space}>;
var<workgroup> key_scale: array<vec4f, ${P / 4}>;
var<workgroup> value_scale: array<vec4f, ${P / 4}>;
${hasMean ? `var<workgroup> mean: array<vec4f, ${Math.max(D, key.dims) / 4}>;` : ''}
var<workgroup> factors: array<f32, ${queries}>;
var<workgroup> rescale: u32;
${capScores(LOG2E)}
${poolLoads}
${firstRead}
${key.reader.text}
${value.reader.text}
fn as_f16(low: vec4f, high: vec4f) -> vec4u {
  return vec4u(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}
fn query_four(at: u32, scale: f32) -> vec4f {
  let x = vec4f(@list(k, 4, bitcast<f32>(queries[at + $k])));
  return clamp(x * (scale * ${LOG2E}), vec4f(-65504.0), vec4f(65504.0));
}
${
  relative === undefined
    ? ''
    : `/** Two pairs of dims. */
fn rotate_back(x: vec4f, at: u32, pair: u32) -> vec4f {
  @unroll(k, 2) var r$k = vec2f(1.0, 0.0);
  @unroll(k, 2) if (pair + $k < ${relative}) { r$k = ${PAGE_ROTATIONS}[at + $k]; }
  return vec4f(
    fma(x.x, r0.x, x.y * r0.y), fma(x.y, r0.x, -(x.x * r0.y)), fma(x.z, r1.x, x.w * r1.y), fma(x.w, r1.x, -(x.z * r1.y)));
}`
}

fn main(group: vec3u, lane: u32, subgroup: u32) {
  bank = lane % 32;
  let item = p.table + p.items + ${PAGE_ITEM.words} * group.x;
  let head = group.y;
  let rows = ${PAGE_ITEM.at.rows};
  let query_half = subgroup / ${HALVES};
  let part = subgroup % ${HALVES};
  let query = lane / ${lanesPerQuery};
  let query_part = lane % ${lanesPerQuery};
  ${key.reader.setup ?? ''}
  ${value.reader.setup ?? ''}
  ${
    relative === undefined
      ? loadQueries
      : `let matrix_at = ${perHead ? `head * ${(D * key.dims) / 8}` : '0u'};
  ${
    hasMean
      ? `for (var n = lane; n < ${D / 4}; n += ${WORKGROUP_SIZE}) {
    mean[n] = vec4f(@list(k, 4, bitcast<f32>(keyTables[${keys.queryMatrix?.length} + head * ${D} + 4 * n + $k])));
  }`
      : ''
  }`
  }
  var m = ${MASKED};
  var l = 0.0;
  @unroll(i, ${I}) @unroll(j, ${J}) var sum$i_$j = ${SUMS}();

  for (var page = ${PAGE_ITEM.at.firstRound}; page < ${PAGE_ITEM.at.rounds}; page++) {
    ${pageOffsets(keys, values)}
    if (lane < ${P / 4}) {
      key_scale[lane] = key_scales(${pageStart('key')}, head, lane);
      value_scale[lane] = value_scales(${pageStart('value')}, head, lane);
    }
    ${centered ? loadPageMean : ''}
    workgroupBarrier();
    var mean_score = 0.0;
    @unroll(i, ${I}) var dots$i: ${SUMS};
    ${centered ? meanScore(`queries_f16[query * ${queryStride}`, key.dims) : ''}
    ${relative === undefined ? '' : transformQueries}
    // Tokens of the page below this are hidden from the query.
    let hidden = first_read(item, query / ${G}) - i32(page * ${P});
    for (var tile = 0u; tile < ${P / TOKENS}; tile++) {
      // 1. scores
      ${decode('key', key, false)}
      if (lane == 0) { rescale = 0; }
      workgroupBarrier();
      @unroll(i, ${I}) dots$i = ${SUMS}();
      @unroll(k, ${key.dims / SIDE}) {{
        let keys_here = ${keyPart('k')};
        @unroll(i, ${I}) dots$i = subgroupMatrixMultiplyAccumulate(${rowsOf('queries_f16', 0, queryStride, 'k')}, keys_here, dots$i);
      }}
      @unroll(i, ${I}) subgroupMatrixStore<row_major>(&space, ${scores} + (query_half * ${I} + $i) * ${SIDE * SCORE_STRIDE} + part * ${SIDE / 4}, dots$i, ${SCORE_STRIDE});
      workgroupBarrier();
      // 2. probabilities, relative to m; and values, where the keys were
      ${decode('value', value, true)}
      {
        let some_hidden = hidden > i32(${TOKENS} * tile);
        var s: vec4f;
        var top4 = vec4f(${MASKED});
        for (var g = 0u; g < ${TOKENS / 4}; g++) { ${score('g')} top4 = max(top4, s); }
        let top = ${maxOf4('top4')};
        var factor = 1.0;
        if (top > m + ${SLACK}.0) {
          factor = exp2(m - top);
          m = top;
          l *= factor;
          rescale = 1;
        }
        if (query_part == 0) { factors[query] = factor; }
        @unroll(n, ${ownFours}) {
          ${score(`(query_part * ${ownFours} + $n)`)}
          let w$n = select(exp2(s - m), vec4f(0.0), s < vec4f(-1e38));
          l += (w$n.x + w$n.y) + (w$n.z + w$n.w);
        }
        @unroll(n, ${ownFours / 2})
          space[${probabilities} + query * ${PROBABILITY_STRIDE} + query_part * ${ownFours / 2} + $n] = as_f16(w$(2 * n), w$(2 * n + 1));
      }
      // 3. output
      if (workgroupUniformLoad(&rescale) > 0 && (page > ${PAGE_ITEM.at.firstRound} || tile > 0)) {
        @unroll(i, ${I}) @unroll(j, ${J}) {
          ${stored('sum$i_$j', scores)}
          workgroupBarrier();
          ${eachSum(scores, 'space[at] = bitcast<vec4u>(bitcast<vec4f>(space[at]) * factors[q]);')}
          workgroupBarrier();
          sum$i_$j = subgroupMatrixLoad<${SUMS}, row_major>(&space, ${scores} + subgroup * ${SUM_VECTORS}, ${SIDE / 4});
          workgroupBarrier();
        }
      }
      @unroll(k, ${TOKENS / SIDE}) {{
        @unroll(i, ${I}) let weights$i = ${rowsOf('space', probabilities, PROBABILITY_STRIDE, 'k')};
        @unroll(j, ${J}) {{
          let values_here = ${valuePart('k', 'j')};
          @unroll(i, ${I}) sum$i_$j = subgroupMatrixMultiplyAccumulate(weights$i, values_here, sum$i_$j);
        }}
      }}
      workgroupBarrier();
    }
  }

  @unroll(i, ${I}) @unroll(j, ${J}) {
    ${stored('sum$i_$j', scores)}
    workgroupBarrier();
    ${eachSum(
      scores,
      `if (q / ${G} < rows) {
            let c = (part * ${J} + $j) * 2 + n % 4 / 2;
            let dim = select(${firstDim(value, 'c', 0)}, ${firstDim(value, 'c', 1)}, n % 2 == 1);
            let to = ${stateOf('q')} + dim;
            let four = bitcast<vec4f>(space[at]);
            @unroll(k, 4) states[to + $k] = four[$k];
          }`,
    )}
    workgroupBarrier();
  }
  space[lane].x = bitcast<u32>(l);
  workgroupBarrier();
  if (query_part == 0 && query / ${G} < rows) {
    let to = ${stateOf('query')} + ${value.dims};
    states[to] = m * ${LN2};
    states[to + 1] = @sum(k, ${lanesPerQuery}, bitcast<f32>(space[lane + $k].x));
  }
}`);
  const buffers = [...PAGE_BUFFERS, readBuffer(PAGE_ROTATIONS, 'vec2f')];
  const bindings = usedBuffers(buffers, `${pageOffsets(keys, values)}${body}`);
  if (relative !== undefined) bindings.push(readBuffer(PAGE_MATRIX, 'vec4u'));
  return {
    name: `attend prompt ${keyName}/${valueName} ${P} ${queries} queries of ${G}/${kvHeads}`,
    summary: 'Attention of many rows over pages with subgroup matrices: one partial state {o, m, l} per query.',
    params: [...u32('table', 'items'), ...PAGE_PARAMS],
    buffers: [readBuffer('data', 'u32'), readBuffer('queries', 'u32'), ...bindings, writeBuffer('states', 'f32')],
    size: WORKGROUP_SIZE,
    body,
    subgroupId: true,
    enable: ['f16', 'subgroups', 'chromium_experimental_subgroup_matrix'],
  };
}
