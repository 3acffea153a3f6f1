/**
 * Attention with four subgroups of 32 lanes per workgroup, for one KV head, up to four pages of one sequence (an item)
 * and all queries that read them: the query heads of the group, of one or several rows. Each subgroup has a page, and a
 * lane four neighbouring tokens of it and some output dims, so scores and sums are complete in a lane, and nothing is
 * carried from page to page:
 *
 *   1. the key stage computes the dot products of a lane's tokens with all queries
 *   2. the lanes of a subgroup reduce the maximum score and compute unnormalized probabilities
 *   3. the value stage sums values under these probabilities, rescaled by the maximum over all pages
 *   4. the sums of all subgroups are added
 *
 * Codes are unpacked once for all queries. The result is a partial state {o, m, l} per query; `combineSplits`
 * (transform.ts) merges them in order. The order of every sum depends on the shape alone, not on how many queries share
 * the workgroup.
 */

import { type Kernel, readBuffer, u32, usedBuffers, writeBuffer } from '../../kernel.ts';
import { type AttendShape, capScores, MASKED, type SourceOf } from '../attend.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { stateFloats } from '../transform.ts';
import { unroll } from '../unroll.ts';
import { PAGE_ITEM } from '../work-items.ts';
import { FOUR_PARAM, SCRATCH, vectors } from './names.ts';
import { SUBGROUPS, subgroupFunctions, WORKGROUP_SIZE } from './subgroup.ts';

/** The words of page-relative queries (page-relative.ts): four coded dims each. */
export interface QueryWords {
  /** Maximum number of words per head. */
  maxWords: number;
  /** Statements that declare `count`, the words of `head`. */
  count: string;
  /** Factor of coded dim n: 0 if no word has it. */
  step(n: string): string;
  /** The four dims (vec4u) of word n. */
  dims(n: string): string;
  /** Twice the offset of the four codes of word n, as four equal int8. */
  twiceOffset?(n: string): string;
}

/** Words per round of code books: sixteen per lane. */
const BOOK_WORDS_PER_ROUND = 16 * LANES;

/** Common to both stages. Texts may depend on the number of queries, Q. */
interface Stage {
  name: string;
  /** Coded dims per vector. */
  dim: number;
  /** vec4u of SCRATCH that the stage uses. */
  scratchVectors?(Q: number): number;
  /** WGSL functions and module variables. */
  text?: string;
  /** Statements before the page: all lanes fill lookup tables. */
  setup?: string;
  /**
   * Rounds of code books in `books` (the key stage's first, then the value stage's), and the statements that fill them.
   */
  books?: { rounds: number; fill: string };
  /** Loads the constants of a page, before anything is waited for. */
  loadConstants?: string;
}

export interface KeyStage extends Stage {
  /** How query words are computed; every page has its own. */
  queryWords: QueryWords;
  /** Computes `dotsJ_V`, and declares `query_scaleV` and `query_offsetV`. */
  sums(Q: number): string;
}

export interface ValueStage extends Stage {
  /** Computes `outI_V`: the sums of a lane's dim I times `page_factorV`, from `probJ_V`. */
  sum(Q: number): string;
  /** Output dims per lane, whose numbers are in `dimI`. */
  dims: number;
  /**
   * Lanes share dims and own none: the stage then adds to `SCRATCH[sums + dim x vectors + v]` (float bits), behind its
   * other vectors. Two subgroups share these sums and must add one after the other: first where `subgroup / 2` is 0, then 1.
   */
  sharedSums?: boolean;
}

/** Arrays of sums: two subgroups share one. Less memory lets more workgroups run at once. */
const SUMS = 2;

/** Where the sums begin in SCRATCH, and its size. */
function scratchLayout(keys: KeyStage, values: ValueStage, Q: number): { sumsAt: number; size: number } {
  const sumsAt = values.sharedSums ? (values.scratchVectors?.(Q) ?? 0) : 0;
  return {
    sumsAt,
    size: Math.max(
      keys.scratchVectors?.(Q) ?? 0,
      values.scratchVectors?.(Q) ?? 0,
      sumsAt + SUMS * values.dim * vectors(Q),
    ),
  };
}

const roundsOf = (keys: KeyStage, values: ValueStage) => Math.max(keys.books?.rounds ?? 0, values.books?.rounds ?? 0);

export interface Source extends SourceOf<KeyStage, ValueStage> {
  /** Whether token `$j` of a lane is visible to the queries of vec4 `$v`. */
  visible: string;
}

/** Items are those of ../work-items.ts. */
export function attend(source: Source, shape: AttendShape, rows: number): Kernel {
  const { group: G, kvHeads, subgroupSize } = shape;
  const { tokens: P, keys, values } = source;
  const H = G * kvHeads;
  const Q = G * rows;
  const V = vectors(Q);
  const C = values.dim;
  const hasSubgroups = subgroupSize === LANES;
  const rounds = roundsOf(keys, values);
  const { sumsAt, size } = scratchLayout(keys, values, Q);
  const addOutputs = `workgroupBarrier();
  if (subgroup >= 2) {
    @unroll(i, ${values.dims}) @unroll(v, ${V}) ${SCRATCH}[sums + dim$i * ${V} + $v] = bitcast<vec4u>(out$i_$v);
  }
  workgroupBarrier();
  if (subgroup < 2) {
    @unroll(i, ${values.dims}) @unroll(v, ${V}) {{
      let at = sums + dim$i * ${V} + $v;
      ${SCRATCH}[at] = bitcast<vec4u>(out$i_$v + bitcast<vec4f>(${SCRATCH}[at]));
    }}
  }`;
  // Rows but the first may be missing.
  const eachQuery = (text: string) => `@unroll(q, ${G}) { ${text} }
    @unroll(q, ${G}..${Q}) if ($(q / ${G}) < rows) { ${text} }`;
  const stateM = 4 * Math.ceil(C / 4);
  const body = unroll(/* wgsl */ `
${subgroupFunctions(hasSubgroups)}
var<workgroup> tops: array<array<vec4f, ${V}>, ${SUBGROUPS}>;
var<workgroup> ${SCRATCH}: array<vec4u, ${size}>;
var<workgroup> softmax_sums: array<array<vec4f, ${V}>, ${SUBGROUPS}>;
${rounds > 0 ? `var<workgroup> books: array<array<u32, ${BOOK_WORDS_PER_ROUND}>, ${rounds}>;` : ''}
${capScores()}
${keys.text ?? ''}
${values.text ?? ''}

fn main(group: vec3u, local_index: u32) {
  lane = local_index % ${LANES};
  subgroup = local_index / ${LANES};
  let item = p.table + p.items + ${PAGE_ITEM.words} * group.x;
  let head = group.y;
  let rows = ${PAGE_ITEM.at.rows};
  let first_state = ${PAGE_ITEM.at.firstState};
  let state_stride = ${PAGE_ITEM.at.stateStride};
  ${keys.setup ?? ''}
  ${values.setup ?? ''}
  ${keys.books?.fill ?? ''}
  ${source.begin}
  ${keys.loadConstants ?? ''}
  ${values.loadConstants ?? ''}
  workgroupBarrier();
  // 1. dot products of the keys with all queries
  ${keys.sums(Q)}
  // 2. unnormalized probabilities
  @unroll(j, 4) @unroll(v, ${V}) var s$j_$v = fma(dots$j_$v, query_scale$v, query_offset$v);
  if (p.softcap > 0.0) { @unroll(j, 4) @unroll(v, ${V}) s$j_$v = cap_scores(s$j_$v); }
  @unroll(j, 4) @unroll(v, ${V}) s$j_$v = select(vec4f(${MASKED}), s$j_$v, ${source.visible});
  @unroll(v, ${V}) {
    let top$v = reduce_max(max(max(max(s0_$v, s1_$v), s2_$v), s3_$v));
    var l$v = vec4f(0.0);
  }
  @unroll(j, 4) @unroll(v, ${V}) {
    let prob$j_$v = select(exp(s$j_$v - top$v), vec4f(0.0), s$j_$v < vec4f(-1e38));
    l$v += prob$j_$v;
  }
  if (lane == 0) { @unroll(v, ${V}) tops[subgroup][$v] = top$v; }
  workgroupBarrier();
  @unroll(v, ${V}) var top_of_all$v = tops[0][$v];
  @unroll(t, 1..${SUBGROUPS}) @unroll(v, ${V}) top_of_all$v = max(top_of_all$v, tops[$t][$v]);
  @unroll(v, ${V}) let page_factor$v = exp(top$v - top_of_all$v);
  // 3. values, weighted by the probabilities
  ${values.books?.fill ?? ''}
  let sums = ${sumsAt} + subgroup % 2 * ${C * V};
  @unroll(i, ${values.dims}) @unroll(v, ${V}) var out$i_$v = vec4f(0.0);
  { ${values.sum(Q)} }
  // 4. sum over all subgroups
  @unroll(v, ${V}) l$v = reduce_add(l$v) * page_factor$v;
  ${values.sharedSums ? '' : addOutputs}
  if (lane == 0) { @unroll(v, ${V}) softmax_sums[subgroup][$v] = l$v; }
  workgroupBarrier();
  @unroll(q, ${Q}) let to$q = ((first_state + $(q / ${G}) * state_stride) * ${H} + head * ${G} + $(q % ${G})) * ${stateFloats(C)};
  for (var i = local_index; i < ${C}; i += ${WORKGROUP_SIZE}) {
    @unroll(v, ${V}) let sum$v = @sum(t, ${SUMS}, bitcast<vec4f>(${SCRATCH}[$(${sumsAt} + t * ${C * V}) + i * ${V} + $v]));
    ${eachQuery('states[to$q + i] = sum$[q];')}
  }
  if (local_index == 0) {
    @unroll(v, ${V}) let softmax_sum$v = (@sum(t, ${SUBGROUPS}, softmax_sums[$t][$v]));
    ${eachQuery(`states[to$q + ${stateM}] = top_of_all$[q]; states[to$q + ${stateM + 1}] = softmax_sum$[q];`)}
  }
}`);
  const bindings = usedBuffers(source.buffers, body);
  return {
    name: `attend ${source.name} four subgroups ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads}${hasSubgroups ? ' subgroup ops' : ''}`,
    summary: 'Attention over sealed pages, four subgroups per workgroup: one partial state {o, m, l} per query.',
    params: [...u32('table', 'items', FOUR_PARAM), ...source.params],
    buffers: [readBuffer('data', 'u32'), readBuffer('queries', 'vec4u'), ...bindings, writeBuffer('states', 'f32')],
    size: WORKGROUP_SIZE,
    body,
    enable: hasSubgroups ? ['subgroups'] : [],
  };
}
