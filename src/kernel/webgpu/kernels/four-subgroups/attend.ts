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
import { type AttendShape, capScores, ITEM_WORDS, MASKED, type SourceOf } from '../attend.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { each } from '../snippets.ts';
import { stateFloats } from '../transform.ts';
import { FOUR_PARAM, output, pageFactor, probabilities, SCRATCH, vectors } from './names.ts';
import { SUBGROUPS, subgroupFunctions, WORKGROUP_SIZE } from './subgroup.ts';

/** Token j of a lane's four. */
export const tokenAt = (j: number): string => `(4 * lane + ${j})`;

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
export const BOOK_WORDS_PER_ROUND = 16 * LANES;

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
  /** Computes the dot products of token j of a lane. */
  sums(Q: number): string;
  /** Scores of token j for the queries of vec4 v. */
  score(Q: number, j: number, v: number): string;
}

export interface ValueStage extends Stage {
  /** Computes `output(i, v)`: the sums of a lane's dim i times `pageFactor(v)`, from `probabilities(j, v)`. */
  sum(Q: number): string;
  /** Output dims per lane, and the dim of index i. */
  dims: number;
  dimOf(i: number): string;
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
  /** Whether token t is visible to the queries of vec4 v. */
  visible(t: string, v: number): string;
}

/** Words of an item: those of ../attend.ts. */
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
  const eachSum = (text: (at: string, sum: string) => string) =>
    each(values.dims, i => each(V, v => text(`sums + ${values.dimOf(i)} * ${V} + ${v}`, output(i, v)), ' '));
  const addOutputs = `workgroupBarrier();
  if (subgroup >= 2) { ${eachSum((at, sum) => `${SCRATCH}[${at}] = bitcast<vec4u>(${sum});`)} }
  workgroupBarrier();
  if (subgroup < 2) { ${eachSum((at, sum) => `{ let at = ${at}; ${SCRATCH}[at] = bitcast<vec4u>(${sum} + bitcast<vec4f>(${SCRATCH}[at])); }`)} }`;
  const ofRow = (q: number, text: string) => (q < G ? text : `if (${Math.floor(q / G)} < rows) { ${text} }`);
  const sumOverSubgroups = (text: (t: number) => string) => `(${each(SUBGROUPS, text, ' + ')})`;
  const all = (text: (j: number, v: number) => string) => each(4, j => each(V, v => text(j, v)));
  const body = /* wgsl */ `
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
  let item = p.table + p.items + ${ITEM_WORDS} * group.x;
  let head = group.y;
  let rows = data[item + 1];
  let first_state = data[item + 5];
  let state_stride = data[item + 6];
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
  ${all((j, v) => `var s${j}_${v} = ${keys.score(Q, j, v)};`)}
  if (p.softcap > 0.0) { ${all((j, v) => `s${j}_${v} = cap_scores(s${j}_${v});`)} }
  ${all((j, v) => `s${j}_${v} = select(vec4f(${MASKED}), s${j}_${v}, ${source.visible(tokenAt(j), v)});`)}
  ${each(
    V,
    v => `let top${v} = reduce_max(${[0, 1, 2, 3].map(j => `s${j}_${v}`).reduce((a, b) => `max(${a}, ${b})`)});
  var l${v} = vec4f(0.0);`,
  )}
  ${all((j, v) => `let ${probabilities(j, v)} = select(exp(s${j}_${v} - top${v}), vec4f(0.0), s${j}_${v} < vec4f(-1e38)); l${v} += ${probabilities(j, v)};`)}
  if (lane == 0) { ${each(V, v => `tops[subgroup][${v}] = top${v};`, ' ')} }
  workgroupBarrier();
  ${each(V, v => `var top_of_all${v} = tops[0][${v}];`, ' ')}
  ${each(SUBGROUPS - 1, t => each(V, v => `top_of_all${v} = max(top_of_all${v}, tops[${t + 1}][${v}]);`, ' '), ' ')}
  ${each(V, v => `let ${pageFactor(v)} = exp(top${v} - top_of_all${v});`, ' ')}
  // 3. values, weighted by the probabilities
  ${values.books?.fill ?? ''}
  let sums = ${sumsAt} + subgroup % 2 * ${C * V};
  ${each(values.dims, i => each(V, v => `var ${output(i, v)} = vec4f(0.0);`, ' '))}
  { ${values.sum(Q)} }
  // 4. sum over all subgroups
  ${each(V, v => `l${v} = reduce_add(l${v}) * ${pageFactor(v)};`, ' ')}
  ${values.sharedSums ? '' : addOutputs}
  if (lane == 0) { ${each(V, v => `softmax_sums[subgroup][${v}] = l${v};`, ' ')} }
  workgroupBarrier();
  ${each(Q, q => `let to${q} = ((first_state + ${Math.floor(q / G)} * state_stride) * ${H} + head * ${G} + ${q % G}) * ${stateFloats(C)};`)}
  for (var i = local_index; i < ${C}; i += ${WORKGROUP_SIZE}) {
    ${each(V, v => `let sum${v} = ${each(SUMS, t => `bitcast<vec4f>(${SCRATCH}[${sumsAt + t * C * V} + i * ${V} + ${v}])`, ' + ')};`)}
    ${each(Q, q => ofRow(q, `states[to${q} + i] = sum${q >> 2}[${q & 3}];`))}
  }
  if (local_index == 0) {
    ${each(V, v => `let softmax_sum${v} = ${sumOverSubgroups(t => `softmax_sums[${t}][${v}]`)};`)}
    ${each(Q, q => ofRow(q, `states[to${q} + ${4 * Math.ceil(C / 4)}] = top_of_all${q >> 2}[${q & 3}]; states[to${q} + ${4 * Math.ceil(C / 4) + 1}] = softmax_sum${q >> 2}[${q & 3}];`))}
  }
}`;
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
