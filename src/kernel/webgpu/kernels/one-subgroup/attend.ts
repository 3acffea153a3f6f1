/**
 * Attention with one subgroup per workgroup: the loop of ../attend.ts for stages that need little workgroup memory. A
 * workgroup of 32 lanes has one KV head, some pages of one sequence (an item) and all queries that read them: the query
 * heads of the group, of one or several rows. A lane owns four tokens of a page and four dims of the output (and four
 * more every 128), so scores and sums are complete in a lane:
 *
 *   1. the key stage computes the dot products of a lane's tokens with all queries
 *   2. lanes reduce the maximum score and compute unnormalized probabilities (online softmax)
 *   3. the value stage accumulates values under these probabilities
 *
 * Codes are unpacked once for all queries. The result is a partial state {o, m, l} per query; `combineSplits`
 * (transform.ts) merges them in order. The order of every sum depends on the shape alone, not on how many queries share
 * the workgroup. Barriers are cheap: where a subgroup has 32 lanes, none waits.
 */

import { type Kernel, readBuffer, u32, usedBuffers, writeBuffer } from '../../kernel.ts';
import { type AttendShape, capScores, MASKED, type SourceOf } from '../attend.ts';
import { pageStart } from '../names.ts';
import { maxOf4 } from '../snippets.ts';
import { stateFloats } from '../transform.ts';
import { unroll } from '../unroll.ts';
import { PAGE_ITEM } from '../work-items.ts';
import { FOUR_PARAM, SCRATCH, vectors } from './names.ts';
import { LANES, subgroupFunctions } from './subgroup.ts';

/** Scores are to the base 2: score scales are multiplied by this. */
export const LOG2E = `f32(${Math.fround(Math.LOG2E)})`;

const LN2 = `f32(${Math.fround(Math.LN2)})`;

/** score + term, where there is a term. */
export const addTerm = (score: string, plus: string | undefined): string => (plus ? `(${score} + ${plus})` : score);

/** Lower bound of the maximum score, above MASKED: probabilities of masked tokens become 0. */
const MIN_MAX_SCORE = '-1e37';

/** Below the smallest positive f16 token factor. */
const MIN_TOKEN_FACTOR = '2e-8';

/** The components of vec4 `$v` of queries: `text` for each query `$q`; the last query fills up. */
export const vec4Of = (Q: number, text: string): string =>
  `(@list(q in [${[0, 1, 2, 3].map(k => `$(min(4 * v + ${k}, ${Q - 1}))`)}], ${text}))`;

/**
 * Index of dim i and vec4 `$v` of queries in shared sums, where neighbouring lanes find their own side by side; and the
 * number of vec4s.
 */
export const sharedSumIndex = (Q: number, i: string): string =>
  `(((${i} / ${4 * LANES} * 4 + ${i} % 4) * ${vectors(Q)} + $v) * ${LANES} + ${i} / 4 % ${LANES})`;

export const sharedSumVectors = (Q: number, dim: number): number => roundsOf(dim) * 4 * vectors(Q) * LANES;

/** Rounds of 32 lanes for n values, four per lane: chunks of the tokens of a page, or of the output dims. */
export const roundsOf = (n: number): number => Math.ceil(n / 4 / LANES);

/**
 * The tokens that a lane owns: four neighbours, or every 32nd where rows are read, so that neighbouring lanes read
 * neighbouring rows. `at` is token `$j` of chunk `$c`.
 */
export interface Tokens {
  strided: boolean;
  at: string;
}

const tokensOf = ({ strided = false, firstToken = 'lane' }: KeyStage): Tokens => ({
  strided,
  at: strided ? `(${firstToken} + $(${4 * LANES} * c + ${LANES} * j))` : `(4 * lane + $(${4 * LANES} * c + j))`,
});

/** Common to both stages. Texts may depend on the number of queries, Q. */
interface Stage {
  name: string;
  /** Coded dims per vector. */
  dim: number;
  /** Maximum number of queries, if not limited by memory alone. */
  maxQueries?: number;
  /** WGSL extensions. */
  enable?: readonly string[];
  /** vec4u of SCRATCH that the stage uses. */
  scratchVectors?(Q: number): number;
  /** WGSL functions and module variables. */
  text(Q: number): string;
  /** Loads the constants of a page, before anything is waited for. */
  loadConstants?(tokens: Tokens): string;
}

/** The means of centered pages (codec/centered.ts). */
export interface PageMeans {
  dims: number;
  /** Byte offset in a page. */
  offset: number;
  /** The first word of a transformed query in floats. */
  floatQuery: number;
}

export interface KeyStage extends Stage {
  /** Statements at the start of a page; may contain barriers. */
  begin?(Q: number): string;
  /** Words per transformed query in `queries: array<u32>`. */
  queryWords: number;
  /** Whether queries are int8. */
  int8?: boolean;
  /** Whether a lane owns every 32nd token, and its first, if not the lane's own number. */
  strided?: boolean;
  firstToken?: string;
  /** Loads the queries: query Q begins at `query_originQ`, or at `query_origin(item, head, q)` for any q. */
  load(Q: number): string;
  /** Computes `dotsC_Q`, the dot products of query Q with the four tokens of chunk C. */
  sums(Q: number): string;
  /** Scores (to the base 2) of query `$q` and chunk `$c` from the dot products, plus a term. */
  score(plus?: string): string;
  /** For centered pages. */
  means?: PageMeans;
}

export interface ValueStage extends Stage {
  /** Factors of the four tokens of chunk `$c` that are folded into their probabilities; none unless given. */
  tokenFactor?: string;
  /** Variables that live through all pages. */
  declare?(Q: number): string;
  /** Starts the first loads before probabilities are computed. */
  prefetch?(tokens: Tokens): string;
  /**
   * Adds to `outR_J_V` the sums of dim 4 (lane + 32 R) + J. The probabilities `probC_Q` count by `page_factorV`, earlier
   * sums by `rescaleV`.
   */
  accumulate(Q: number, tokens: Tokens): string;
  /** The dim of `out$r_$j_V`, if not that. */
  dimOf?: string;
  /** Whether J stands for dim lane + 32 J (and 128 R) instead. */
  strided?: boolean;
  /** Statements after the last page. */
  finish?(Q: number): string;
  /** The array in workgroup memory where `finish` leaves the sums (`sharedSumIndex`), if it does. */
  sharedSums?: string;
}

export interface Source extends SourceOf<KeyStage, ValueStage> {
  /** Whether the queries of row `$r` see token t, and whether all queries see all tokens. */
  visible(t: string): string;
  allVisible: string;
  /** Index of the first round, and of the one after the last. */
  firstRound: string;
  rounds: string;
}

/** What the mean of a page adds to the scores of each query. Lanes have pairs of dims. */
const meanScores = (Q: number, { dims, offset, floatQuery }: PageMeans): string => `
    @unroll(v, ${vectors(Q)}) var mean_score$v = vec4f(0.0);
    for (var n = lane; n < ${dims / 2}; n += ${LANES}) {
      let mean = unpack2x16float(pool[(${pageStart('key')} + ${offset}) / 4 + head * ${dims / 2} + n]);
      @unroll(q, ${Q}) mean_score$[q] += dot(mean,
        bitcast<vec2f>(vec2u(@list(k, 2, queries[query_origin$q + $(${floatQuery} + k) + 2 * n]))));
    }
    @unroll(v, ${vectors(Q)}) mean_score$v = reduce_add(mean_score$v) * ${LOG2E};`;

/** Stores the sums of query `$q`. The last lanes may own dims past the last one. */
function storeOutput({ dim: C, dimOf, strided }: ValueStage): string {
  const rounds = roundsOf(C);
  const store = (n: string, guard: string, text: string, whole: number, count: number) =>
    `@unroll(${n}, ${whole}) ${text} @unroll(${n}, ${whole}..${count}) if (${guard}) { ${text} }`;
  if (dimOf) {
    const text = 'states[at + i / 4][i % 4] = out$r_$j_$[q];';
    const guarded = C % (4 * LANES) === 0 ? text : `if (i < ${C}) { ${text} }`;
    return `@unroll(r, ${rounds}) @unroll(j, 4) {{ let i = ${dimOf}; ${guarded} }}`;
  }
  if (strided)
    return store(
      'n',
      `lane + $(${LANES} * n) < ${C}`,
      `states[at + $(${LANES / 4} * n) + lane / 4][lane % 4] = out$(n / 4)_$(n % 4)_$[q];`,
      Math.floor(C / LANES),
      4 * rounds,
    );
  const S = Math.ceil(C / 4);
  return store(
    'r',
    `lane + $(${LANES} * r) < ${S}`,
    `states[at + lane + $(${LANES} * r)] = vec4f(@list(j, 4, out$r_$j_$[q]));`,
    Math.floor(S / LANES),
    rounds,
  );
}

/** Items are those of ../work-items.ts. */
export function attend(source: Source, shape: AttendShape, rows: number): Kernel {
  const { group: G, kvHeads, subgroupSize } = shape;
  const { tokens: P, keys, values } = source;
  const H = G * kvHeads;
  const Q = G * rows;
  const V = vectors(Q);
  const C = values.dim;
  const [chunks, rounds] = [roundsOf(P), roundsOf(C)];
  const hasSubgroups = subgroupSize === LANES;
  const scratchSize = Math.max(keys.scratchVectors?.(Q) ?? 0, values.scratchVectors?.(Q) ?? 0);
  const tokens = tokensOf(keys);
  // Lanes without a token of a short page always mask.
  const whole = P % (4 * LANES) === 0;
  const allVisible = whole ? source.allVisible : 'false';
  const here = whole ? '' : ` & vec4<bool>(@list(j, 4, ${tokens.at} < ${P}))`;
  const { tokenFactor } = values;
  const plus = [tokenFactor && 'logs$c', keys.means && 'vec4f(mean_score$[q])'].filter(Boolean).join(' + ');
  // Factors of tokens are not part of the score.
  const cap = tokenFactor ? 'cap_scores(s$c_$q - logs$c) + logs$c' : 'cap_scores(s$c_$q)';
  const w = 'prob$c_$q';
  const by = 'inverse$c';
  const probabilitySum = tokenFactor
    ? `fma(${w}.x, ${by}.x, fma(${w}.y, ${by}.y, fma(${w}.z, ${by}.z, ${w}.w * ${by}.w)))`
    : `((${w}.x + ${w}.y) + (${w}.z + ${w}.w))`;
  const body = unroll(/* wgsl */ `
var<private> lane: u32;
${subgroupFunctions(hasSubgroups)}
/** Offset of query q of an item: rows past the last repeat it. */
fn query_origin(item: u32, head: u32, q: u32) -> u32 {
  return ((${PAGE_ITEM.at.row} + min(q / ${G}, ${PAGE_ITEM.at.rows} - 1)) * ${H} + head * ${G} + q % ${G}) * ${keys.queryWords};
}
${scratchSize > 0 ? `var<workgroup> ${SCRATCH}: array<vec4u, ${scratchSize}>;` : ''}
${capScores(LOG2E)}
${keys.text(Q)}
${values.text(Q)}

fn main(group: vec3u, local_index: u32) {
  lane = local_index;
  let item = p.table + p.items + ${PAGE_ITEM.words} * group.x;
  let head = group.y;
  @unroll(q, ${Q}) let query_origin$q = query_origin(item, head, $qu);
  ${keys.load(Q)}
  @unroll(v, ${V}) { var m$v = vec4f(${MASKED}); var l$v = vec4f(0.0); }
  @unroll(r, ${rounds}) @unroll(j, 4) @unroll(v, ${V}) var out$r_$j_$v = vec4f(0.0);
  ${values.declare?.(Q) ?? ''}
  workgroupBarrier();

  for (var page = ${source.firstRound}; page < ${source.rounds}; page++) {
    ${source.begin}
    ${keys.loadConstants?.(tokens) ?? ''}
    ${values.loadConstants?.(tokens) ?? ''}
    ${keys.means ? meanScores(Q, keys.means) : ''}
    ${keys.begin?.(Q) ?? ''}
    // 1. dot products of the keys with all queries
    ${keys.sums(Q)}
    ${values.prefetch?.(tokens) ?? ''}
    // 2. unnormalized probabilities (online softmax)
    @unroll(v, ${V}) { var top$v = vec4f(${MASKED}); var sum$v = vec4f(0.0); }
    @unroll(c, ${chunks}) {
      ${tokenFactor ? `let factors$c = max(${tokenFactor}, vec4f(${MIN_TOKEN_FACTOR})); let logs$c = log2(factors$c);` : ''}
      @unroll(q, ${Q}) var s$c_$q = ${keys.score(plus || undefined)};
      if (p.softcap > 0.0) { @unroll(q, ${Q}) s$c_$q = ${cap}; }
      if (!(${allVisible})) {
        @unroll(r, ${rows}) let visible$r = vec4<bool>(@list(j, 4, ${source.visible(tokens.at)}))${here};
        @unroll(q, ${Q}) s$c_$q = select(vec4f(${MASKED}), s$c_$q, visible$(q / ${G}));
      }
      @unroll(q, ${Q}) top$[q] = max(top$[q], ${maxOf4('s$c_$q')});
    }
    @unroll(v, ${V}) {
      top$v = max(reduce_max(top$v), vec4f(${MIN_MAX_SCORE}));
      // Online softmax: whichever of the earlier sums and this page has the smaller maximum is scaled down.
      let is_higher$v = top$v > m$v;
      let decay$v = exp2(-abs(top$v - m$v));
      let rescale$v = select(vec4f(1.0), decay$v, is_higher$v);
      let page_factor$v = select(decay$v, vec4f(1.0), is_higher$v);
      m$v = max(m$v, top$v);
    }
    @unroll(c, ${chunks}) {
      ${tokenFactor ? 'let inverse$c = 1.0 / factors$c;' : ''}
      @unroll(q, ${Q}) {
        let prob$c_$q = exp2(s$c_$q - vec4f(top$[q]));
        sum$[q] += ${probabilitySum};
      }
    }
    @unroll(v, ${V}) l$v = fma(l$v, rescale$v, sum$v * page_factor$v);
    // 3. values, weighted by the probabilities
    ${values.accumulate(Q, tokens)}
  }

  @unroll(v, ${V}) { l$v = reduce_add(l$v); m$v = m$v * ${LN2}; }
  ${values.finish?.(Q) ?? ''}
  ${
    values.sharedSums
      ? `workgroupBarrier();
  @unroll(r, ${rounds}) @unroll(j, 4) @unroll(v, ${V}) out$r_$j_$v = ${values.sharedSums}[$(((4 * r + j) * ${V} + v) * ${LANES}) + lane];`
      : ''
  }
  @unroll(q, ${Q}) if ($(q / ${G}) < ${PAGE_ITEM.at.rows}) {
    let at = ((${PAGE_ITEM.at.firstState} + $(q / ${G}) * ${PAGE_ITEM.at.stateStride}) * ${H} + head * ${G} + $(q % ${G})) * ${stateFloats(C) / 4};
    ${storeOutput(values)}
    if (lane == 0) { states[at + ${Math.ceil(C / 4)}] = vec4f(m$[q], l$[q], 0.0, 0.0); }
  }
}`);
  const bindings = usedBuffers(source.buffers, `${source.begin}${body}`);
  return {
    name: `attend ${source.name} one subgroup ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads}${hasSubgroups ? ' subgroup ops' : ''}`,
    summary: 'Attention over packed tokens, one subgroup per workgroup: one partial state {o, m, l} per query.',
    params: [...u32('table', 'items', FOUR_PARAM), ...source.params],
    buffers: [readBuffer('data', 'u32'), readBuffer('queries', 'u32'), ...bindings, writeBuffer('states', 'vec4f')],
    size: LANES,
    body,
    enable: [...new Set([...(hasSubgroups ? ['subgroups'] : []), ...(keys.enable ?? []), ...(values.enable ?? [])])],
  };
}
