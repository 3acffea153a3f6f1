/**
 * Attention of a prompt's rows over pages, with subgroup matrices: a workgroup has one KV head, some pages of one
 * sequence (an item) and up to 64 queries, the query heads of many rows. Its subgroups keep the queries in registers. Keys
 * and values of 64 or 32 tokens at a time are decoded to f16 (prompt-tile.ts), once for all queries:
 *
 *   1. scores         queries x keys, into workgroup memory
 *   2. probabilities  a lane has eight tokens of a query; meanwhile the values replace the keys
 *   3. output         probabilities x values, added to sums in registers
 *
 * Where keys are relative to their page, queries are rotated and transformed once per page, by matrices too. The result is
 * a partial state {o, m, l} per query, like that of attend.ts. A row's bits do not depend on the other rows: `m` is a
 * maximum of its own scores, and the sums of a matrix product are those of its row.
 */

import type { PageLayout } from '../../page-layout.ts';
import { type Kernel, readBuffer, u32, usedBuffers, writeBuffer } from '../kernel.ts';
import { type AttendShape, capScores, MASKED } from './attend.ts';
import { pageStart } from './names.ts';
import { PAGE_ROTATIONS } from './page-relative.ts';
import { poolLoads } from './pool-loads.ts';
import {
  decode,
  firstDim,
  type Size,
  SUBGROUP_SIZE,
  store,
  tileOf,
  vectorsPerLane,
  workgroupSize,
} from './prompt-tile.ts';
import { maxOf4 } from './snippets.ts';
import { firstRead, PAGE_BUFFERS, PAGE_PARAMS, pageOffsets } from './sources.ts';
import { stateFloats } from './transform.ts';
import { unroll } from './unroll.ts';
import { PAGE_ITEM } from './work-items.ts';

/** Rows and columns of a subgroup matrix. */
const SIDE = 16;
const QUERIES = 64;
/** Matrices of 16 queries. */
const QUERY_BLOCKS = QUERIES / SIDE;

/** The first that fits is used. More subgroups hide more of the latency of memory. */
const SIZES: readonly Size[] = [
  { subgroups: 16, tokens: 64 },
  { subgroups: 8, tokens: 32 },
];

/** Vectors of four scores per query; probabilities take half. One more than needed, to avoid bank conflicts. */
const scoreStride = ({ tokens }: Size) => tokens / 4 + 1;
/** vec4s of a matrix of sums. */
const SUM_VECTORS = (SIDE * SIDE) / 4;
/** Probabilities are relative to a maximum that follows only if it is off by 2 to this power: sums are rarely rescaled. */
const SLACK = 8;

const LOG2E = `f32(${Math.fround(Math.LOG2E)})`;
const LN2 = `f32(${Math.fround(Math.LN2)})`;

/** The matrix that transforms page-relative queries, as the kernel reads it: [dim][coded dim] in f16. */
export const PAGE_MATRIX = 'page_matrix';

/** A codec's pages; codecs of the same name have the same kernels. */
interface Pages {
  name: string;
  layout: PageLayout;
  perHead: boolean;
}

/** The kernels for a pair of codecs, the fastest first; none for pages that matrices cannot read. */
export function promptKernels(keys: Pages, values: Pages, shape: AttendShape): (() => Kernel)[] {
  const [key, value] = [keys, values].map(({ layout }) => layout);
  if ([key, value].some(({ encoding }) => ['oaken', 'spectrum'].includes(encoding.kind))) return [];
  if (shape.group > QUERIES || (key.ropeFrequencies && !key.queryMatrix)) return [];
  return SIZES.filter(
    ({ subgroups, tokens }) =>
      shape.pageTokens % tokens === 0 &&
      [shape.headDim, key.codedDim, value.codedDim].every(dims => dims % (SIDE * (subgroups / QUERY_BLOCKS)) === 0),
  ).map(size => () => attendPrompt(keys, values, shape, size));
}

/** Rows per workgroup. */
export const promptRows = ({ group }: AttendShape): number => Math.floor(QUERIES / group);

const load = (kind: 'left' | 'right', order: 'row_major' | 'col_major', from: string, at: string, stride: number) =>
  `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${SIDE}, ${SIDE}>, ${order}>(&${from}, ${at}, ${stride})`;

const storeMatrix = (sums: string, at: string, stride: number) =>
  `subgroupMatrixStore<row_major>(&space, ${at}, ${sums}, ${stride});`;

const SUMS = `subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>`;

function attendPrompt(
  { name: keyName, layout: keys, perHead }: Pages,
  { name: valueName, layout: values }: Pages,
  shape: AttendShape,
  size: Size,
): Kernel {
  const { subgroups, tokens } = size;
  const { group: G, kvHeads, pageTokens: P, headDim: D } = shape;
  const H = G * kvHeads;
  const [key, value] = [tileOf('key', keys, shape, size), tileOf('value', values, shape, size)];
  const lanes = workgroupSize(size);
  const lanesPerQuery = lanes / QUERIES;
  /** Subgroups that share a block of queries. */
  const parts = subgroups / QUERY_BLOCKS;
  const relative = keys.ropeFrequencies?.length;
  const centered = keys.meansOffset !== undefined;
  /** Subgroups of the output: by dims, then by queries; and their matrices of 16 queries and 16 dims. */
  const across = value.dims % (2 * parts * SIDE) === 0 ? 2 * parts : parts;
  const [I, J] = [across / parts, value.dims / SIDE / across];
  /** Matrices of 16 coded dims, and those of a subgroup when queries are transformed. */
  const keyBlocks = key.dims / SIDE;
  const transformed = keyBlocks / parts;
  // Workgroup memory: a tile, then scores, probabilities or sums; or queries on their way into registers.
  const queryStride = key.dims / 8 + 1;
  const rotatedStride = D / 8 + 1;
  const floatStride = key.dims / 4 + 1;
  const scores = Math.max(key.vectors, value.vectors);
  const space = Math.max(
    scores + QUERIES * scoreStride(size),
    scores + subgroups * SUM_VECTORS,
    QUERIES * (relative === undefined ? queryStride : Math.max(rotatedStride, floatStride)),
  );
  const stride = scoreStride(size);
  const weightsAt = `${scores} + (row_block * ${I} + $i) * ${SIDE * stride} + $(2 * k)`;
  const weightsBlock = load('left', 'row_major', 'space', weightsAt, stride);
  const keyBlock = (k: string) =>
    key.reader.by === 'eight'
      ? load('right', 'col_major', 'space', `part * ${SIDE * key.stride} + $(2 * ${k})`, key.stride)
      : load('right', 'row_major', 'space', `$(${SIDE * key.stride} * ${k}) + part * 2`, key.stride);
  const valueBlock = (k: string, j: string) =>
    value.reader.by === 'eight'
      ? load(
          'right',
          'row_major',
          'space',
          `$(${SIDE * value.stride} * ${k}) + column * ${2 * J} + $(2 * ${j})`,
          value.stride,
        )
      : load(
          'right',
          'col_major',
          'space',
          `(column * ${J} + $(${j})) * ${SIDE * value.stride} + $(2 * ${k})`,
          value.stride,
        );
  const queryBlock = load('left', 'row_major', 'space', `block * ${SIDE * queryStride} + $(2 * k)`, queryStride);
  const loadQueryBlocks = `@unroll(k, ${keyBlocks}) query$k = ${queryBlock};
    workgroupBarrier();`;
  /** The output's sums $i, $j in the part of a subgroup. */
  const ownSums = `${scores} + subgroup * ${SUM_VECTORS}`;
  const storeSums = storeMatrix('sum$i_$j', ownSums, SIDE / 4);
  /** Every lane has some vectors `at` of them: number n, of query q. */
  const eachSum = (text: string) => `for (var n = lane % ${SUBGROUP_SIZE}; n < ${SUM_VECTORS}; n += ${SUBGROUP_SIZE}) {
          let at = ${ownSums} + n;
          let q = (row_block * ${I} + $i) * ${SIDE} + n / ${SIDE / 4};
          ${text}
        }`;
  const headOf = (q: string) => `head * ${G} + ${q} % ${G}`;
  const rowOf = (q: string) => `((${PAGE_ITEM.at.row} + min(${q} / ${G}, rows - 1)) * ${H} + ${headOf(q)})`;
  const { firstState, stateStride } = PAGE_ITEM.at;
  const stateOf = (q: string) =>
    `((${firstState} + ${q} / ${G} * ${stateStride}) * ${H} + ${headOf(q)}) * ${stateFloats(value.dims)}`;
  const loadQueries = `
  for (var at = lane; at < ${(QUERIES * key.dims) / 8}; at += ${lanes}) {
    let q = at / ${key.dims / 8};
    let c = at % ${key.dims / 8};
    let origin = ${rowOf('q')} * ${key.dims};
    space[q * ${queryStride} + c] =
      as_f16(query_four(origin + ${firstDim(key, 'c', 0)}), query_four(origin + ${firstDim(key, 'c', 1)}));
  }
  workgroupBarrier();
  ${loadQueryBlocks}`;
  // Means are added in f32: they may be large.
  const pageMean = `
    for (var i = query_part; i < ${D}; i += ${lanesPerQuery}) {
      let x = bitcast<f32>(queries[${rowOf('query')} * ${key.dims} + i]);
      mean_score = fma(x, read_f16(${pageStart('key')} + ${keys.meansOffset} + 2 * (head * ${D} + i)), mean_score);
    }
    mean_score *= ${LOG2E};`;
  const learnedMean = `
    for (var pair = query_part; pair < ${D / 2}; pair += ${lanesPerQuery}) {
      let x = rotated_pair(${rowOf('query')} * ${D / 2} + pair, pair, page_angles);
      let at = ${keys.queryMatrix?.length} + head * ${D} + 2 * pair;
      mean_score += dot(x, bitcast<vec2f>(vec2u(keyTables[at], keyTables[at + 1])));
    }`;
  const rotatedBlock = load('left', 'row_major', 'space', `block * ${SIDE * rotatedStride} + $(2 * k)`, rotatedStride);
  const matrixBlock = load(
    'right',
    'row_major',
    PAGE_MATRIX,
    `matrix_at + $(${2 * key.dims} * k) + part * ${2 * transformed} + $(2 * j)`,
    key.dims / 8,
  );
  const floatBlock = `block * ${SIDE * floatStride} + (part * ${transformed} + $j) * ${SIDE / 4}`;
  /** Vector $n of eight coded dims that a lane converts. */
  const lineOf = (stride: number, width: number) =>
    `(lane + $(${lanes} * n)) / ${key.dims / 8} * ${stride} + (lane + $(${lanes} * n)) % ${key.dims / 8} * ${width}`;
  /** Queries rotated back to the start of the page, then transformed: their sums become f16 on the way through. */
  const transformQueries = `
    for (var at = lane; at < ${(QUERIES * D) / 8}; at += ${lanes}) {
      let q = at / ${D / 8};
      let c = at % ${D / 8};
      let origin = ${rowOf('q')} * ${D / 2} + 4 * c;
      @unroll(k, 4) let x$k = rotated_pair(origin + $k, 4 * c + $k, page_angles);
      space[q * ${rotatedStride} + c] = as_f16(within_f16(vec4f(x0, x1)), within_f16(vec4f(x2, x3)));
    }
    workgroupBarrier();
    {
      @unroll(j, ${transformed}) var sums$j = ${SUMS}();
      @unroll(k, ${D / SIDE}) {{
        let rotated = ${rotatedBlock};
        @unroll(j, ${transformed}) sums$j = subgroupMatrixMultiplyAccumulate(rotated, ${matrixBlock}, sums$j);
      }}
      workgroupBarrier();
      @unroll(j, ${transformed}) ${storeMatrix('sums$j', floatBlock, floatStride)}
      workgroupBarrier();
      @unroll(n, ${(QUERIES * key.dims) / 8 / lanes}) {
        let at$n = ${lineOf(floatStride, 2)};
        let x$n = as_f16(bitcast<vec4f>(space[at$n]), bitcast<vec4f>(space[at$n + 1]));
      }
      workgroupBarrier();
      @unroll(n, ${(QUERIES * key.dims) / 8 / lanes}) space[${lineOf(queryStride, 1)}] = x$n;
    }
    workgroupBarrier();
    ${loadQueryBlocks}`;
  const rotation = `
/** A pair of dims of a query, rotated back to the start of a page. */
fn rotated_pair(at: u32, pair: u32, page_angles: u32) -> vec2f {
  let x = bitcast<vec2f>(vec2u(queries[2 * at], queries[2 * at + 1])) * (p.scale * ${LOG2E});
  if (pair >= ${relative}) { return x; }
  let r = ${PAGE_ROTATIONS}[page_angles + pair];
  return vec2f(fma(x.x, r.x, x.y * r.y), fma(x.y, r.x, -(x.x * r.y)));
}`;
  /** `text` by 1, 2 and so on: all lanes of a query get the result. */
  const shuffled = (text: string) =>
    [1, 2, 4]
      .filter(by => by < lanesPerQuery)
      .map(by => text.replace('$by', `${by}`))
      .join(' ');
  const hasMean = centered || (relative !== undefined && keys.mean !== undefined);
  const body = unroll(/* wgsl */ `
var<private> bank: u32;
var<workgroup> space: array<vec4u, ${space}>;
var<workgroup> key_scale: array<vec4f, ${P / 4}>;
var<workgroup> value_scale: array<vec4f, ${P / 4}>;
var<workgroup> factors: array<f32, ${QUERIES}>;
var<workgroup> rescale: u32;
${capScores(LOG2E)}
${poolLoads}
${firstRead}
${key.reader.text}
${value.reader.text}
fn as_f16(low: vec4f, high: vec4f) -> vec4u {
  return vec4u(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}
fn within_f16(x: vec4f) -> vec4f { return clamp(x, vec4f(-65504.0), vec4f(65504.0)); }
/** Scores are to the base 2. */
fn query_four(at: u32) -> vec4f {
  return within_f16(vec4f(@list(k, 4, bitcast<f32>(queries[at + $k]))) * ${LOG2E});
}
${relative === undefined ? '' : rotation}

fn main(group: vec3u, lane: u32, subgroup: u32) {
  bank = lane % 32;
  let item = p.table + p.items + ${PAGE_ITEM.words} * group.x;
  let head = group.y;
  let rows = ${PAGE_ITEM.at.rows};
  let block = subgroup / ${parts};
  let part = subgroup % ${parts};
  let row_block = subgroup / ${across};
  let column = subgroup % ${across};
  let query = lane / ${lanesPerQuery};
  let query_part = lane % ${lanesPerQuery};
  ${key.reader.setup ?? ''}
  ${value.reader.setup ?? ''}
  @unroll(k, ${keyBlocks}) var query$k: subgroup_matrix_left<f16, ${SIDE}, ${SIDE}>;
  ${relative === undefined ? loadQueries : `let matrix_at = ${perHead ? `head * ${(D * key.dims) / 8}` : '0u'};`}
  var m = ${MASKED};
  var l = 0.0;
  @unroll(i, ${I}) @unroll(j, ${J}) var sum$i_$j = ${SUMS}();

  for (var page = ${PAGE_ITEM.at.firstRound}; page < ${PAGE_ITEM.at.rounds}; page++) {
    ${pageOffsets(keys, values)}
    if (lane < ${P / 4}) {
      key_scale[lane] = key_scales(${pageStart('key')}, head, lane);
      value_scale[lane] = value_scales(${pageStart('value')}, head, lane);
    }
    var mean_score = 0.0;
    ${relative === undefined ? '' : `let page_angles = (${PAGE_ITEM.at.firstPage} + page) * ${relative};`}
    ${centered ? pageMean : hasMean ? learnedMean : ''}
    ${hasMean ? shuffled('mean_score += subgroupShuffleXor(mean_score, $by);') : ''}
    ${relative === undefined ? '' : transformQueries}
    // Tokens of the page below this are hidden from the query.
    let hidden = first_read(item, query / ${G}) - i32(page * ${P});
    workgroupBarrier();
    @unroll(u, ${vectorsPerLane(key)}) var key$u: vec4u;
    @unroll(u, ${vectorsPerLane(value)}) var value$u: vec4u;
    ${decode(key, '0u', false)}
    for (var tile = 0u; tile < ${P / tokens}; tile++) {
      // 1. scores
      ${store(key)}
      if (lane == 0) { rescale = 0; }
      ${decode(value, 'tile', true)}
      workgroupBarrier();
      var dots = ${SUMS}();
      @unroll(k, ${keyBlocks}) dots = subgroupMatrixMultiplyAccumulate(query$k, ${keyBlock('k')}, dots);
      ${storeMatrix('dots', `${scores} + block * ${SIDE * stride} + part * ${SIDE / 4}`, stride)}
      workgroupBarrier();
      // 2. probabilities, relative to m; and values, where the keys were
      ${store(value)}
      {
        let first = ${scores} + query * ${stride} + 2 * query_part;
        let g = ${tokens / 4} * tile + 2 * query_part;
        @unroll(n, 2) {
          var s$n = fma(bitcast<vec4f>(space[first + $n]), key_scale[g + $n], vec4f(mean_score));
          if (p.softcap > 0.0) { s$n = cap_scores(s$n); }
          if (hidden > i32(${tokens} * tile)) {
            s$n = select(s$n, vec4f(${MASKED}), vec4i(4 * i32(g + $n)) + vec4i(0, 1, 2, 3) < vec4i(hidden));
          }
        }
        let top4 = max(s0, s1);
        var top = ${maxOf4('top4')};
        ${shuffled('top = max(top, subgroupShuffleXor(top, $by));')}
        var factor = 1.0;
        if (top > m + ${SLACK}.0) {
          factor = exp2(m - top);
          m = top;
          l *= factor;
          rescale = 1;
        }
        if (query_part == 0) { factors[query] = factor; }
        // All scores are read here: this waits for all subgroups.
        if (workgroupUniformLoad(&rescale) > 0 && (page > ${PAGE_ITEM.at.firstRound} || tile > 0)) {
          @unroll(i, ${I}) @unroll(j, ${J}) {
            ${storeSums}
            workgroupBarrier();
            ${eachSum('space[at] = bitcast<vec4u>(bitcast<vec4f>(space[at]) * factors[q]);')}
            workgroupBarrier();
            sum$i_$j = subgroupMatrixLoad<${SUMS}, row_major>(&space, ${ownSums}, ${SIDE / 4});
            workgroupBarrier();
          }
        }
        @unroll(n, 2) {
          let w$n = select(exp2(s$n - m), vec4f(0.0), s$n < vec4f(-1e38));
          l += (w$n.x + w$n.y) + (w$n.z + w$n.w);
        }
        space[${scores} + query * ${stride} + query_part] = as_f16(w0, w1);
      }
      if (tile + 1 < ${P / tokens}) { ${decode(key, 'tile + 1', false)} }
      workgroupBarrier();
      // 3. output
      @unroll(k, ${tokens / SIDE}) {{
        @unroll(i, ${I}) let weights$i = ${weightsBlock};
        @unroll(j, ${J}) {{
          let values_here = ${valueBlock('k', 'j')};
          @unroll(i, ${I}) sum$i_$j = subgroupMatrixMultiplyAccumulate(weights$i, values_here, sum$i_$j);
        }}
      }}
      workgroupBarrier();
    }
  }

  @unroll(i, ${I}) @unroll(j, ${J}) {
    ${storeSums}
    workgroupBarrier();
    ${eachSum(
      `if (q / ${G} < rows) {
            let c = (column * ${J} + $j) * 2 + n % 4 / 2;
            let dim = select(${firstDim(value, 'c', 0)}, ${firstDim(value, 'c', 1)}, n % 2 == 1);
            let to = ${stateOf('q')} + dim;
            let four = bitcast<vec4f>(space[at]);
            @unroll(k, 4) states[to + $k] = four[$k];
          }`,
    )}
    workgroupBarrier();
  }
  ${shuffled('l += subgroupShuffleXor(l, $by);')}
  if (query_part == 0 && query / ${G} < rows) {
    let to = ${stateOf('query')} + ${value.dims};
    states[to] = m * ${LN2};
    states[to + 1] = l;
  }
}`);
  const buffers = [...PAGE_BUFFERS, readBuffer(PAGE_ROTATIONS, 'vec2f')];
  const bindings = usedBuffers(buffers, `${pageOffsets(keys, values)}${body}`);
  if (relative !== undefined) bindings.push(readBuffer(PAGE_MATRIX, 'vec4u'));
  return {
    name: `attend prompt ${keyName}/${valueName} ${P} by ${tokens} of ${G}/${kvHeads}`,
    summary: 'Attention of many rows over pages with subgroup matrices: one partial state {o, m, l} per query.',
    params: [...u32('table', 'items'), ...PAGE_PARAMS],
    buffers: [readBuffer('data', 'u32'), readBuffer('queries', 'u32'), ...bindings, writeBuffer('states', 'f32')],
    size: lanes,
    body,
    subgroupId: true,
    enable: ['f16', 'subgroups', 'chromium_experimental_subgroup_matrix'],
  };
}
