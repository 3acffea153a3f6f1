/**
 * Attention over pages as floats, 128 lanes per workgroup: reads every codec in every shape, and precisely. A workgroup
 * has one KV head, some pages of one sequence (an item) and all queries that read them: the query heads of the group,
 * of one or several rows. A page takes three steps, with a barrier after each:
 *
 *   1. the key stage computes dot products per token, as a few partial sums in different lanes
 *   2. lane n of the 32 of a query owns tokens 4 n to 4 n + 3: it adds the partial sums and, after a maximum over the
 *      lanes, computes unnormalized probabilities
 *   3. the value stage accumulates values under these probabilities
 *
 * Codes are unpacked once for all queries. The result is a partial state {o, m, l} per query; `combineSplits`
 * (transform.ts) merges them in order. The order of every sum depends on the shape alone, not on how many queries share
 * the workgroup.
 */

import { type BufferBinding, type Kernel, type Param, readBuffer, u32, usedBuffers, writeBuffer } from '../kernel.ts';
import { type PageShape, WORKGROUP_SIZE } from './shape.ts';
import { maxOf4 } from './snippets.ts';
import { stateFloats } from './transform.ts';
import { unroll } from './unroll.ts';
import { PAGE_ITEM } from './work-items.ts';

/** Lanes per query in step 2: tokens 4 g to 4 g + 3 belong to lane g mod 32. */
const LANES_PER_QUERY = 32;
/** Score of a token that a query does not see. */
export const MASKED = '-3e38';

/** Squashes scores in units of `unit` into (-softcap, softcap). tanh may overflow past 10, where it is 1 anyway. */
export const capScores = (unit = '1.0'): string => /* wgsl */ `
fn cap_scores(scores: vec4f) -> vec4f {
  let cap = p.softcap * ${unit};
  return cap * tanh(clamp(scores / cap, vec4f(-10.0), vec4f(10.0)));
}`;

export interface AttendShape extends PageShape {
  /** Query heads per KV head. */
  group: number;
}

/** Common to both stages. Texts may depend on the number of queries, Q. */
interface Stage {
  name: string;
  /** Coded dims per vector. */
  dim: number;
  /** WGSL functions and module variables. */
  text(Q: number): string;
  /** The same, declared once where both stages have it. */
  shared?: string;
  /** Statements before the first page: all lanes fill lookup tables. */
  setup?: string;
  /** Statements before the sums of a page, for all lanes; may contain barriers. */
  begin?(Q: number): string;
}

export interface KeyStage extends Stage {
  /** Words per transformed query in `queries: array<u32>`. */
  queryWords: number;
  /** Bindings besides the pages. */
  buffers?: readonly BufferBinding[];
  /** Variables that live through all pages. */
  declare?: string;
  /** Stores word n of query q (offset `origin`) in workgroup memory, for n below `loadedWords`. */
  load(Q: number): string;
  loadedWords: number;
  /** Partial sums per score, and the statements that store them: store_sum(part, q, t, sum) or store_sums4(part, q, t / 4, sums). */
  parts: number;
  sums(Q: number): string;
  /** Scores of query q with tokens 4 g to 4 g + 3, from `dots`, the sums of their parts. */
  score: string;
}

export interface ValueStage extends Stage {
  /**
   * Stores `weights`, the probabilities of query q for tokens 4 g to 4 g + 3 (the largest of the page is 1), times
   * `page_factor`.
   */
  storeProbabilities(Q: number): string;
  /**
   * Partial output sums per dim, in different lanes: declared, rescaled by `factors[q]` and accumulated, then stored by
   * add_output(q, i, sum).
   */
  shares: number;
  /** Index of the share that a lane has. */
  share: string;
  declare(Q: number): string;
  sum(Q: number): string;
  addOutput(Q: number): string;
}

/** Where tokens come from, and the stages that read their keys and values. */
export interface SourceOf<Keys, Values> {
  name: string;
  params: readonly Param[];
  /** Bindings; those that the text does not use are dropped. */
  buffers: readonly BufferBinding[];
  /** Tokens per round. */
  tokens: number;
  keys: Keys;
  values: Values;
  /** Statements at the start of a round; `item` and `page`, the index of the round, are in scope. */
  begin: string;
}

export interface Source extends SourceOf<KeyStage, ValueStage> {
  /** Index of the first round. */
  firstRound: string;
  /** Whether query q sees token t. */
  visible(t: string): string;
}

/**
 * Items are those of work-items.ts.
 * `parts`: workgroups that share the query heads of a KV head, where one cannot hold all of them.
 */
export function attend(source: Source, shape: AttendShape, rows: number, parts = 1): Kernel {
  const { kvHeads } = shape;
  const { tokens: P, keys, values } = source;
  const G = shape.group / parts;
  const H = shape.group * kvHeads;
  const Q = G * rows;
  const C = values.dim;
  const perLane = Math.ceil((Q * LANES_PER_QUERY) / WORKGROUP_SIZE);
  const chunks = Math.ceil(P / 4 / LANES_PER_QUERY);
  // Padded, so that parts lie in different banks.
  const stride = Q * P + 8;
  // A subgroup that divides the lanes of a query reduces their maximum by itself.
  const { subgroupSize = 0 } = shape;
  const lanesPerMax = subgroupSize >= 4 && LANES_PER_QUERY % subgroupSize === 0 ? subgroupSize : 1;
  const maximaPerQuery = LANES_PER_QUERY / lanesPerMax;
  const scratch = Math.max(keys.parts * stride, Q * C);
  /** Statements for pair `$k` of a lane: a query and one of its 32 lanes. */
  const eachPair = (text: string) => `@unroll(k, ${perLane}) {{
      let n = lane + $(k * ${WORKGROUP_SIZE});
      let q = n / ${LANES_PER_QUERY};
      let query_lane = n % ${LANES_PER_QUERY};
      if (q < ${Q}) { ${text} }
    }}`;
  /** Statements for chunk `$c` of a pair's tokens: tokens 4 g to 4 g + 3. */
  const eachChunk = (text: string) => {
    const g = `query_lane + $(c * ${LANES_PER_QUERY})`;
    const guard = (P / 4) % LANES_PER_QUERY === 0 ? '' : `if (${g} < ${P / 4}) `;
    return `@unroll(c, ${chunks}) { ${guard}{ let g = ${g}; ${text} } }`;
  };
  /** Stores the maximum of a lane or subgroup for the other lanes of the query. */
  const storeMax = (value: string) => `{
      let at = q * ${maximaPerQuery} + query_lane / ${lanesPerMax};
      lane_values[at / 4][at % 4] = ${value};
    }`;
  /** Maximum over the stored values; nothing is stored where one subgroup has all lanes of a query. */
  const reduceMax = (laneMax: string) => {
    if (maximaPerQuery === 1) return `let top = ${laneMax};`;
    if (maximaPerQuery < 4)
      return `let top = max(@list(s, ${maximaPerQuery}, lane_values[(q * ${maximaPerQuery} + $s) / 4][(q * ${maximaPerQuery} + $s) % 4]));`;
    return `var all4 = lane_values[q * ${maximaPerQuery / 4} + 0];
        @unroll(s, 1..${maximaPerQuery / 4}) all4 = max(all4, lane_values[q * ${maximaPerQuery / 4} + $s]);
        let top = ${maxOf4('all4')};`;
  };
  const stateOf = (q: string) =>
    `((${PAGE_ITEM.at.firstState} + ${q} / ${G} * ${PAGE_ITEM.at.stateStride}) * ${H} + group.y * ${G} + ${q} % ${G}) * ${stateFloats(C)}`;
  const body = unroll(/* wgsl */ `
var<private> bank: u32;
var<workgroup> scratch: array<vec4f, ${Math.ceil(scratch / 4)}>;
var<workgroup> lane_values: array<vec4f, ${(Q * LANES_PER_QUERY) / 4}>;
var<workgroup> factors: array<f32, ${Q}>;
fn store_sum(part: u32, q: u32, t: u32, sum: f32) {
  let at = part * ${stride} + q * ${P} + t;
  scratch[at / 4][at % 4] = sum;
}
fn store_sums4(part: u32, q: u32, g: u32, sums: vec4f) { scratch[part * ${stride / 4} + q * ${P / 4} + g] = sums; }
fn add_output(q: u32, i: u32, sum: f32) {
  let at = q * ${C} + i;
  scratch[at / 4][at % 4] += sum;
}
${capScores()}
${[...new Set([keys.shared, values.shared])].join('\n')}
${keys.text(Q)}
${values.text(Q)}

fn main(group: vec3u, lane: u32) {
  bank = lane % 32;
  let item = p.table + p.items + ${PAGE_ITEM.words} * group.x;
  let head = group.y${parts > 1 ? ` / ${parts}` : ''};
  let rows = ${PAGE_ITEM.at.rows};
  ${keys.setup ?? ''}
  ${values.setup ?? ''}
  for (var at = lane; at < ${Q * keys.loadedWords}; at += ${WORKGROUP_SIZE}) {
    let q = at / ${keys.loadedWords};
    let n = at % ${keys.loadedWords};
    let row = ${PAGE_ITEM.at.row} + min(q / ${G}, rows - 1);
    let origin = (row * ${H} + group.y * ${G} + q % ${G}) * ${keys.queryWords};
    ${keys.load(Q)}
  }
  @unroll(k, ${perLane}) { var m$k = ${MASKED}; var l$k = 0.0; }
  ${keys.declare ?? ''}
  ${values.declare(Q)}
  workgroupBarrier();

  for (var page = ${source.firstRound}; page < ${PAGE_ITEM.at.rounds}; page++) {
    ${source.begin}
    ${keys.begin?.(Q) ?? ''}
    // 1. dot products of the keys with all queries
    ${keys.sums(Q)}
    // 2. unnormalized probabilities (online softmax)
    workgroupBarrier();
    @unroll(k, ${perLane}) { var top$k = ${MASKED}; @unroll(c, ${chunks}) var s$k_$c = vec4f(${MASKED}); }
    ${eachPair(`
      var top4 = vec4f(${MASKED});
      ${eachChunk(`
        let dots = @sum(i, ${keys.parts}, scratch[$(i * ${stride / 4}) + q * ${P / 4} + g]);
        var scores = ${keys.score};
        if (p.softcap > 0.0) { scores = cap_scores(scores); }
        let t0 = 4 * g;
        s$k_$c = select(vec4f(${MASKED}), scores, vec4<bool>(@list(j, 4, ${source.visible('(t0 + $j)')})));
        top4 = max(top4, s$k_$c);`)}
      top$k = ${maxOf4('top4')};`)}
    ${lanesPerMax > 1 ? `@unroll(k, ${perLane}) top$k = subgroupMax(top$k);` : ''}
    ${maximaPerQuery > 1 ? `${eachPair(storeMax('top$k'))} workgroupBarrier();` : ''}
    ${eachPair(`
      ${reduceMax('top$k')}
      let m = max(m$k, top);
      let factor = exp(m$k - m);
      let page_factor = exp(top - m);
      var sum = 0.0;
      ${eachChunk(`
        let weights = select(exp(s$k_$c - top), vec4f(0.0), s$k_$c < vec4f(-1e38));
        sum += (weights.x + weights.y) + (weights.z + weights.w);
        ${values.storeProbabilities(Q)}`)}
      l$k = fma(l$k, factor, sum * page_factor);
      m$k = m;
      if (query_lane == 0) { factors[q] = factor; }`)}
    workgroupBarrier();
    ${values.begin?.(Q) ?? ''}
    // 3. values, weighted by the probabilities
    ${values.sum(Q)}
  }

  workgroupBarrier();
  for (var at = lane; at < ${Math.ceil((Q * C) / 4)}; at += ${WORKGROUP_SIZE}) { scratch[at] = vec4f(0.0); }
  for (var current_share = 0u; current_share < ${values.shares}; current_share++) {
    workgroupBarrier();
    if (${values.share} == current_share) { ${values.addOutput(Q)} }
  }
  workgroupBarrier();
  for (var at = lane; at < ${Q * C}; at += ${WORKGROUP_SIZE}) {
    let q = at / ${C};
    let i = at % ${C};
    if (q / ${G} < rows) {
      states[${stateOf('q')} + i] = scratch[at / 4][at % 4];
    }
  }
  workgroupBarrier();
  ${eachPair(`
      lane_values[q * ${LANES_PER_QUERY / 4} + query_lane / 4][query_lane % 4] = l$k;
      if (query_lane == 0) { factors[q] = m$k; }`)}
  workgroupBarrier();
  if (lane < ${Q} && lane / ${G} < rows) {
    var l = lane_values[lane * ${LANES_PER_QUERY / 4}];
    for (var s = 1u; s < ${LANES_PER_QUERY / 4}; s++) { l += lane_values[lane * ${LANES_PER_QUERY / 4} + s]; }
    let at = ${stateOf('lane')} + ${4 * Math.ceil(C / 4)};
    states[at] = factors[lane];
    states[at + 1] = (l.x + l.y) + (l.z + l.w);
  }
}`);
  const bindings = usedBuffers([...source.buffers, ...(keys.buffers ?? [])], `${source.begin}${body}`);
  return {
    name: `attend ${source.name} ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads} in ${lanesPerMax}${parts > 1 ? `, ${parts} parts` : ''}`,
    summary: 'Attention over tokens read as floats, 128 lanes per workgroup: one partial state {o, m, l} per query.',
    params: [...u32('table', 'items'), ...source.params],
    buffers: [readBuffer('data', 'u32'), readBuffer('queries', 'u32'), ...bindings, writeBuffer('states', 'f32')],
    size: WORKGROUP_SIZE,
    body,
    enable: lanesPerMax > 1 ? ['subgroups'] : [],
  };
}
