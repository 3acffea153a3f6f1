/**
 * Transforms queries into a codec's domain (its matrix and mean) before attention; combines the partial states after it
 * and transforms them back.
 */

import { f32, type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { int8Buffers, toInt8 } from './activations.ts';
import { unroll } from './unroll.ts';

export const TRANSFORM_WORKGROUP_SIZE = 256;
/** Words per row: row, first state and number of states of pages, first state and number of states of f16 tokens. */
export const ROW_WORDS = 5;

export interface CodecTransform {
  headDim: number;
  codedDim: number;
  heads: number;
  kvHeads: number;
  /**
   * Whether there is a matrix, one per KV head, and a mean. A signed Hadamard matrix comes as its signs, divided by the
   * root of the dims.
   */
  matrix: boolean;
  signs: boolean;
  perHead: boolean;
  mean: boolean;
  /** Whether pages are centered, so that attention needs queries in floats. */
  centered: boolean;
}

export const transformName = ({
  headDim,
  codedDim,
  heads,
  kvHeads,
  matrix,
  signs,
  perHead,
  mean,
  centered,
}: CodecTransform) =>
  `${headDim}/${codedDim} ${heads}/${kvHeads}${signs ? ' signs' : matrix ? ' matrix' : ''}${perHead ? ' per head' : ''}${mean ? ' mean' : ''}${centered ? ' centered' : ''}`;

/**
 * Terms and states loaded before the first is used, to hide latency. With many rows other workgroups hide it, and fewer
 * registers let more of them run.
 */
const PREFETCH = { few: { terms: 16, states: 16 }, many: { terms: 4, states: 4 } };
export type BatchSize = keyof typeof PREFETCH;

/** Rows that count as many. */
const MANY_ROWS = 32;
export const batchSizeOf = (rows: number): BatchSize => (rows < MANY_ROWS ? 'few' : 'many');

/** Query heads per workgroup, all of one KV head: they share the loads of the matrix. */
export const headsPerWorkgroup = (group: number): number => [4, 3, 2].find(n => group % n === 0) ?? 1;

/** Words per int8 query: four dims per word, then its scale and the sum of its words. */
export const int8Words = (dim: number): number => dim / 4 + 2;

/** Words per transformed query: floats, or int8 words, which are followed by the floats for centered pages. */
export const queryWords = ({ headDim, codedDim, centered }: CodecTransform, int8: boolean): number =>
  int8 ? int8Words(codedDim) + (centered ? headDim : 0) : codedDim;

/** Neighbouring values of a matrix row per lane. */
const widthOf = (to: number) => (to % 4 === 0 ? 4 : 1);

/**
 * `NAME(kv, lane)`: y[r][c] = sum over i of matrix[i][c] x[r][i] for `rows` rows in workgroup memory. Neighbouring
 * lanes have neighbouring c; further lanes share i.
 */
function multiply(name: string, from: number, to: number, rows: number, perHead: boolean, terms: number): string {
  const width = widthOf(to);
  const lanes = Math.min(to / width, TRANSFORM_WORKGROUP_SIZE);
  const shares =
    from % Math.floor(TRANSFORM_WORKGROUP_SIZE / lanes) === 0 ? Math.floor(TRANSFORM_WORKGROUP_SIZE / lanes) : 1;
  const share = from / shares;
  const unrolled = share % terms === 0 ? terms : 1;
  const type = width === 4 ? 'vec4f' : 'f32';
  const term = unrolled === 1 ? at('x', `$(r * ${from}) + i`) : 'x$r_$[u]';
  const target = width === 4 ? `y[$(r * ${to / 4}) + c]` : at('y', `$(r * ${to}) + c`);
  return /* wgsl */ `
fn ${name}(kv: u32, lane: u32) {
  let share = lane / ${lanes};
  for (var first = 0u; first < ${to / width}; first += ${lanes}) {
    let c = first + lane % ${lanes};
    let live = share < ${shares} && c < ${to / width};
    @unroll(r, ${rows}) var sum$r = ${type}();
    for (var i = share * ${share}; i < select(0, (share + 1) * ${share}, live); i += ${unrolled}) {
      @unroll(u, ${unrolled}) let m$u = matrix[${perHead ? `kv * ${(from * to) / width} + ` : ''}(i + $u) * ${to / width} + c];
      ${unrolled > 1 ? `@unroll(r, ${rows}) @unroll(u, ${unrolled / 4}) let x$r_$u = x[($(r * ${from}) + i) / 4 + $u];` : ''}
      @unroll(r, ${rows}) @unroll(u, ${unrolled}) sum$r = fma(m$u, ${type}(${term}), sum$r);
    }
    for (var current_share = 0u; current_share < ${shares}; current_share++) {
      if (live && share == current_share) {
        @unroll(r, ${rows}) ${target} = sum$r + select(${target}, ${type}(), current_share == 0);
      }
      workgroupBarrier();
    }
  }
}`;
}

/** Bindings of the matrix and mean of a codec. */
const tables = ({ matrix, mean }: CodecTransform, to: number) => [
  ...(matrix ? [readBuffer('matrix', widthOf(to) === 4 ? 'vec4f' : 'f32')] : []),
  ...(mean ? [readBuffer('mean', 'f32')] : []),
];

/** Rows of floats in workgroup memory, four per vector. */
const rowsOf = (name: string, numbers: number) => `var<workgroup> ${name}: array<vec4f, ${Math.ceil(numbers / 4)}>;`;
const at = (name: string, i: string) => `${name}[(${i}) / 4][(${i}) % 4]`;

/** Lanes per query head, a power of two. */
const lanesPerHead = (G: number) => 2 ** Math.floor(Math.log2(TRANSFORM_WORKGROUP_SIZE / G));

/** `reduce_head(lane, value, add)`: the maximum, or the sum, over the lanes of a query head. */
const reduceHead = (G: number) => /* wgsl */ `
var<workgroup> lane_values: array<vec4f, ${TRANSFORM_WORKGROUP_SIZE / 4}>;
fn combine(a: vec4f, b: vec4f, add: bool) -> vec4f { return select(max(a, b), a + b, add); }
fn reduce_head(lane: u32, value: f32, add: bool) -> f32 {
  workgroupBarrier();
  lane_values[lane / 4][lane % 4] = value;
  workgroupBarrier();
  let first = min(lane / ${lanesPerHead(G)}, ${G - 1}u) * ${lanesPerHead(G) / 4};
  var four = lane_values[first];
  for (var n = 1u; n < ${lanesPerHead(G) / 4}; n++) { four = combine(four, lane_values[first + n], add); }
  return select(max(max(four.x, four.y), max(four.z, four.w)), (four.x + four.y) + (four.z + four.w), add);
}`;

/**
 * Transforms scaled queries, one workgroup per row and some heads: to floats, or to int8 (four per word, then scale and
 * sum, and floats for centered pages). The matrix is transposed, [dim][coded dim], so that neighbouring lanes read
 * neighbouring values. For signed Hadamard transforms see one-subgroup/transform-query.ts and
 * four-subgroups/combine-splits.ts.
 */
export function transformQuery(d: CodecTransform, int8: boolean, batchSize: BatchSize): Kernel {
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const G = headsPerWorkgroup(heads / kvHeads);
  const words = queryWords(d, int8);
  const y = d.matrix ? 'y' : 'x';
  /** The first `dims` of each query, from word `first` on. */
  const floats = (
    dims: number,
    first: number,
  ) => `for (var n = lane; n < ${G * dims}; n += ${TRANSFORM_WORKGROUP_SIZE}) {
    queries[to + n / ${dims} * ${words} + ${first} + n % ${dims}] = bitcast<u32>(${at(y, `n / ${dims} * ${C} + n % ${dims}`)});
  }`;
  const share = lanesPerHead(G);
  const integers = /* wgsl */ `
  let r = min(lane / ${share}, ${G - 1}u);
  let part = lane % ${share};
  let live = lane < ${share * G};
  var top = vec4f(0.0);
  for (var c = part; c < ${C / 4}; c += ${share}) { top = max(top, abs(${y}[r * ${C / 4} + c])); }
  let max_abs = reduce_head(lane, max(max(top.x, top.y), max(top.z, top.w)), false);
  let unit = select(0.0, 127.0 / max_abs, max_abs > 0);
  var sum = 0;
  for (var c = part; c < select(0u, ${C / 4}u, live); c += ${share}) {
    let word = pack4xI8(vec4i(round(${y}[r * ${C / 4} + c] * unit)));
    sum += dot4I8Packed(word, 0x01010101u);
    queries[to + r * ${words} + c] = word;
  }
  let all = reduce_head(lane, f32(sum), true);
  if (part == 0 && live) {
    queries[to + r * ${words} + ${C / 4}] = bitcast<u32>(max_abs / 127.0);
    queries[to + r * ${words} + ${C / 4 + 1}] = bitcast<u32>(all);
  }`;
  return {
    name: `transform query ${transformName(d)}${int8 ? ' int8' : ''} ${batchSize}`,
    summary: 'Transforms queries into the domain of the packed keys.',
    params: [...u32('table', 'rows'), ...f32('scale')],
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('q', 'f32'),
      ...tables({ ...d, mean: false }, C),
      writeBuffer('queries', 'u32'),
    ],
    size: TRANSFORM_WORKGROUP_SIZE,
    body: unroll(/* wgsl */ `
${rowsOf('x', G * D)}
${d.matrix ? `${rowsOf('y', G * C)}\n${multiply('transform', D, C, G, d.perHead, PREFETCH[batchSize].terms)}` : ''}
${int8 ? reduceHead(G) : ''}
fn main(group: vec3u, lane: u32) {
  let row = data[p.table + p.rows + ${ROW_WORDS} * group.y];
  let kv = group.x * ${G} / ${heads / kvHeads};
  let at = (row * ${heads} + group.x * ${G}) * ${D};
  let to = (row * ${heads} + group.x * ${G}) * ${words};
  for (var i = lane; i < ${G * D}; i += ${TRANSFORM_WORKGROUP_SIZE}) { x[i / 4][i % 4] = q[at + i] * p.scale; }
  workgroupBarrier();
  ${d.matrix ? 'transform(kv, lane);' : ''}
  ${int8 ? integers : floats(C, 0)}
  ${int8 && d.centered ? floats(D, int8Words(C)) : ''}
}`),
  };
}

/** Floats per partial state: o, then m and l, padded to vec4s. */
export const stateFloats = (dim: number): number => 4 * Math.ceil(dim / 4) + 4;

/** States whose factors are in workgroup memory at a time. */
const STATES_AT_ONCE = 512;

export interface CombineOptions {
  /** Also writes the result as int8, for the next GEMV. */
  int8: boolean;
  /** The softmax includes one more logit per query head. */
  sinkLogits: boolean;
}

export const combineName = (d: CodecTransform, { int8, sinkLogits }: CombineOptions) =>
  `combine splits ${transformName(d)}${int8 ? ' int8' : ''}${sinkLogits ? ' sink logits' : ''}`;

/**
 * Combines attention splits, one workgroup per row and some heads: merges the states of pages, transforms them back,
 * merges those of f16 tokens. Lanes are states while factors are computed, then vec4s of dims of every few states.
 */
export function combineSplits(d: CodecTransform, { int8, sinkLogits }: CombineOptions, batchSize: BatchSize): Kernel {
  const { terms, states: ahead } = PREFETCH[batchSize];
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const G = headsPerWorkgroup(heads / kvHeads);
  const share = lanesPerHead(G);
  const statesAtOnce = Math.floor(STATES_AT_ONCE / G);
  const stateOf = (dim: number, n: string, g: string) =>
    `((${n}) * ${heads} + group.x * ${G} + ${g}) * ${stateFloats(dim) / 4}`;
  const maxOfStates = (states: string, dim: number, first: string, count: string) => `
  for (var u = part; u < select(0u, ${count}, live); u += ${share}) {
    m = max(m, ${states}[${stateOf(dim, `${first} + u`, 'lane_head')} + ${Math.ceil(dim / 4)}].x);
  }`;
  const merge = (states: string, dim: number, first: string, count: string, to: string) => {
    const vectors = Math.ceil(dim / 4);
    // vec4s of all heads, one per lane.
    const all = G * vectors;
    const lanes = Math.min(all, TRANSFORM_WORKGROUP_SIZE);
    const slots = Math.floor(TRANSFORM_WORKGROUP_SIZE / lanes);
    const rounds = Math.ceil(all / lanes);
    const selectVector = `let n = min(lane % ${lanes} + $(j * ${lanes}), ${all - 1}u); let g = n / ${vectors};`;
    const addVector =
      dim % 4 === 0
        ? `${to}[n] += sum$j;`
        : `for (var k = 4 * (n % ${vectors}); k < min(${dim}u, 4 * (n % ${vectors}) + 4); k++) { ${at(to, `g * ${dim} + k`)} += sum$j[k % 4]; }`;
    // One round of all lanes is whole.
    const whole = lanes < all ? 0 : 1;
    return /* wgsl */ `
  {
    @unroll(j, ${rounds}) var sum$j = vec4f(0.0);
    let slot = lane / ${lanes};
    for (var start = 0u; start < ${count}; start += ${statesAtOnce}) {
      let batch = min(${statesAtOnce}u, ${count} - start);
      workgroupBarrier();
      for (var u = part; u < select(0u, batch, live); u += ${share}) {
        let state = ${states}[${stateOf(dim, `${first} + start + u`, 'lane_head')} + ${vectors}];
        let weight = exp(state.x - m);
        weights[lane_head * ${statesAtOnce} + u] = weight;
        l = fma(weight, state.y, l);
      }
      workgroupBarrier();
      @unroll(j, ${rounds}) {{
        ${selectVector}
        for (var u = slot; u < select(0u, batch, slot < ${slots}); u += ${slots * ahead}) {
          @unroll(k, ${ahead}) {
            let u$k = min(u + $(k * ${slots}), batch - 1);
            let o$k = ${states}[${stateOf(dim, `${first} + start + u$k`, 'g')} + n % ${vectors}];
          }
          @unroll(k, ${ahead}) sum$j =
            fma(vec4f(select(0.0, weights[g * ${statesAtOnce} + u$k], u + $(k * ${slots}) < batch)), o$k, sum$j);
        }
      }}
    }
    for (var current_slot = 0u; current_slot < ${slots}; current_slot++) {
      workgroupBarrier();
      if (slot == current_slot) {
        @unroll(j, ${whole}) {{ ${selectVector} ${addVector} }}
        @unroll(j, ${whole}..${rounds}) if (lane + $(j * ${lanes}) < ${all}) { ${selectVector} ${addVector} }
      }
    }
  }`;
  };
  return {
    name: `${combineName(d, { int8, sinkLogits })} ${batchSize}`,
    summary: 'Combines the attention splits of a row, merges pages with f16 tokens, and transforms the output back.',
    params: u32('table', 'rows'),
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('states', 'vec4f'),
      readBuffer('f16_states', 'vec4f'),
      ...tables(d, D),
      ...(sinkLogits ? [readBuffer('sink_logits', 'f32')] : []),
      writeBuffer('out', 'f32'),
      ...(int8 ? int8Buffers : []),
    ],
    size: TRANSFORM_WORKGROUP_SIZE,
    body: unroll(/* wgsl */ `
${int8 ? toInt8(TRANSFORM_WORKGROUP_SIZE) : ''}
${reduceHead(G)}
${rowsOf('x', G * C)}
${rowsOf('y', G * D)}
var<workgroup> weights: array<f32, ${G * statesAtOnce}>;
var<workgroup> totals: array<f32, ${G}>;
${d.matrix ? multiply('transform_back', C, D, G, d.perHead, terms) : ''}
fn main(group: vec3u, lane: u32) {
  let at = p.table + p.rows + ${ROW_WORDS} * group.y;
  let row = data[at];
  let kv = group.x * ${G} / ${heads / kvHeads};
  let lane_head = min(lane / ${share}, ${G - 1}u);
  let part = lane % ${share};
  let live = lane < ${share * G};
  for (var i = lane; i < ${Math.ceil((G * C) / 4)}; i += ${TRANSFORM_WORKGROUP_SIZE}) { x[i] = vec4f(0.0); }
  ${sinkLogits ? `let sink_logit = sink_logits[group.x * ${G} + lane_head];` : ''}
  var m = ${sinkLogits ? 'sink_logit' : '-3e38'};
  ${maxOfStates('states', C, 'data[at + 1]', 'data[at + 2]')}
  ${maxOfStates('f16_states', D, 'data[at + 3]', 'data[at + 4]')}
  m = reduce_head(lane, m, false);
  var l = 0.0;
  ${merge('states', C, 'data[at + 1]', 'data[at + 2]', 'x')}
  workgroupBarrier();
  ${
    d.mean
      ? `let sealed = reduce_head(lane, l, true);
  if (part == 0 && live) { totals[lane_head] = sealed; }`
      : ''
  }
  ${d.matrix ? 'transform_back(kv, lane);' : ''}
  ${
    d.matrix
      ? ''
      : `for (var i = lane; i < ${Math.ceil((G * D) / 4)}; i += ${TRANSFORM_WORKGROUP_SIZE}) { y[i] = x[i]; }
  workgroupBarrier();`
  }
  ${
    d.mean
      ? `for (var i = lane; i < ${G * D}; i += ${TRANSFORM_WORKGROUP_SIZE}) {
    ${at('y', 'i')} = fma(totals[i / ${D}], mean[kv * ${D} + i % ${D}], ${at('y', 'i')});
  }`
      : ''
  }
  ${merge('f16_states', D, 'data[at + 3]', 'data[at + 4]', 'y')}
  let all = reduce_head(lane, l, true)${sinkLogits ? ' + exp(sink_logit - m)' : ''};
  if (part == 0 && live) { totals[lane_head] = all; }
  workgroupBarrier();
  let start = (row * ${heads} + group.x * ${G}) * ${D};
  for (var i = lane; i < ${G * D}; i += ${TRANSFORM_WORKGROUP_SIZE}) {
    let value = ${at('y', 'i')} / totals[i / ${D}];
    ${at('y', 'i')} = value;
    out[start + i] = value;
  }
  ${
    int8
      ? `workgroupBarrier();
  @unroll(n, ${Math.ceil((G * D) / 4 / TRANSFORM_WORKGROUP_SIZE)}) {
    to_int8(y[min(lane + $(n * ${TRANSFORM_WORKGROUP_SIZE}), ${(G * D) / 4 - 1}u)],
      start / 4 + lane + $(n * ${TRANSFORM_WORKGROUP_SIZE}), lane,
      lane + $(n * ${TRANSFORM_WORKGROUP_SIZE}) < ${(G * D) / 4});
  }`
      : ''
  }
}`),
  };
}
