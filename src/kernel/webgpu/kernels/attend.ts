/**
 * Attention over a few tokens at a time: the loop that every source of keys and values shares. A workgroup has one KV
 * head, some pages of one sequence (an item) and all queries that read them: the query heads of the group, of one row or
 * of several. Lanes are tokens while scores are made and dims while values are summed; what is unpacked is unpacked once
 * for all queries. It leaves a partial state {o, m, l} a query; `finish` (domain.ts) merges them in order.
 *
 * How keys are read and how values are summed is up to two parts, one a side: `generic.ts` reads any codec as floats,
 * `linear.ts` multiplies integers. Every sum runs in an order that depends on the shape alone, not on how many queries
 * share the workgroup.
 */
import type { Kernel } from '../gpu.ts';
import type { PageShape } from './read.ts';
import { each } from './text.ts';

export const SIZE = 128;
/** Of the weights of a page: tokens 4 g to 4 g + 3 belong to slice g mod 32. */
const SLICES = 32;
/** Pages an item: fixed, so that a result does not depend on the batch. */
export const SPLIT = 4;
/** Words of an item. */
export const ITEM = 9;
const NEVER = '-3e38';

export interface AttendShape extends PageShape {
  /** Query heads a KV head. */
  group: number;
}

/** How keys are read. Texts have `t` at hand, and the queries' number Q where they are functions of it. */
export interface KeyPart {
  name: string;
  /** Length of a coded key. */
  dim: number;
  /** Words of a prepared query in `queries: array<u32>`. */
  words: number;
  /** What it reads beside the pages. */
  buffers?: readonly string[];
  /** Functions and variables. */
  text(Q: number): string;
  /** Puts query q, whose words begin at `origin`, into workgroup memory: word n of it. */
  load: string;
  /** Words of workgroup memory a query, and in all. */
  loaded: number;
  fixed: number;
  /** Statements at the start of a round, for queries that differ from page to page. */
  begin?(Q: number): string;
  /** Declares s0, s1, ...: the scores of all queries with token t. */
  scores(Q: number): string;
}

/** How values are summed up under weights. */
export interface ValuePart {
  name: string;
  dim: number;
  /** Tokens that must be summed together. */
  grain: number;
  /** Words of workgroup memory in all. */
  fixed: number;
  text(Q: number): string;
  /** Statements at the start of a round. */
  begin?: string;
  /** Before weights: what a page's weights have in common, as lane `n` of 32 sees its tokens; then all lanes. */
  survey?: { lane: string; all: string };
  /** Around the weights of tokens 4 g to 4 g + 3 of query q, and at each of them (`t`, `j`, `weight`). */
  open: string;
  each: string;
  close: string;
  /** Adds what the sums lack to slice k of a query's state, as `factor` and the texts above left it. */
  carry?: { declare(k: number): string; add(k: number): string; share: string };
  /** Adds to o0, o1, ... (of column j) for dim i over tokens `first` to `end`. */
  sum(Q: number, j: number, first: string, end: string): string;
}

export interface Source {
  name: string;
  params: readonly string[];
  buffers: readonly string[];
  /** Tokens a round. */
  tokens: number;
  keys: KeyPart;
  values: ValuePart;
  /** Statements at the start of a round, with `item` and `page`, the number of the round, at hand. */
  begin: string;
  /** Whether query q sees token t. */
  seen: string;
}

/**
 * Words of an item: row, rows, [source's own], rounds, [source's own], first state, states between rows, and two more
 * of the source's own.
 */
export function attend(source: Source, shape: AttendShape, rows: number): Kernel {
  const { group: G, kvHeads } = shape;
  const { tokens: P, keys, values } = source;
  const H = G * kvHeads;
  const Q = G * rows;
  const C = values.dim;
  const perLane = Math.ceil((Q * SLICES) / SIZE);
  /** Values are summed by as many groups of lanes as fit, each over its share of the tokens. */
  const shares = SIZE % C === 0 ? Math.max(1, Math.min(SIZE / C, Math.floor(P / values.grain))) : 1;
  const columns = Math.ceil(C / SIZE);
  const [first, end] = shares > 1 ? [`share * ${P / shares}`, `(share + 1) * ${P / shares}`] : ['0u', `${P}u`];
  const { carry, survey } = values;
  const pairs = (text: (k: number) => string) =>
    each(perLane, k => `{ let n = lane + ${k * SIZE}; let q = n / ${SLICES}; let slice = n % ${SLICES}; ${text(k)} }`);
  const stateOf = (q: string) =>
    `((data[item + 5] + ${q} / ${G} * data[item + 6]) * ${H} + head * ${G} + ${q} % ${G}) * ${C + 2}`;
  return {
    name: `attend ${source.name} ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads}`,
    params: ['table', 'items', ...source.params],
    buffers: [
      'data: array<u32>',
      'queries: array<u32>',
      ...source.buffers,
      ...(keys.buffers ?? []),
      'write states: array<f32>',
    ],
    size: SIZE,
    body: /* wgsl */ `
${keys.text(Q)}
${values.text(Q)}
var<workgroup> scores: array<f32, ${Q * P}>;
var<workgroup> slices: array<f32, ${Math.max(Q * SLICES, SIZE)}>;
var<workgroup> factors: array<f32, ${Q}>;

fn main(group: vec3u, lane: u32) {
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  let rows = data[item + 1];
  for (var at = lane; at < ${Q * keys.loaded}; at += ${SIZE}) {
    let q = at / ${keys.loaded};
    let n = at % ${keys.loaded};
    let row = data[item] + min(q / ${G}, rows - 1);
    let origin = (row * ${H} + head * ${G} + q % ${G}) * ${keys.words};
    ${keys.load}
  }
  ${each(perLane, k => `var m${k} = ${NEVER}; var l${k} = 0.0; ${carry?.declare(k) ?? ''}`)}
  ${each(Q, q => each(columns, j => `var o${q}_${j} = 0.0;`, ' '))}
  let share = lane / ${C};

  for (var page = 0u; page < data[item + 3]; page++) {
    ${source.begin}
    ${keys.begin?.(Q) ?? ''}
    ${values.begin ?? ''}
    workgroupBarrier();
    for (var t = lane; t < ${P}; t += ${SIZE}) {
      ${keys.scores(Q)}
      ${each(Q, q => `{ let q = ${q}u; scores[${q * P} + t] = select(${NEVER}, s${q}, ${source.seen}); }`)}
    }
    ${survey ? `if (lane < ${SLICES}) { let n = lane; ${survey.lane} }` : ''}
    workgroupBarrier();
    ${survey?.all ?? ''}
    ${pairs(
      () => `
      if (q < ${Q}) {
        var most = ${NEVER};
        for (var g = slice; g < ${P / 4}; g += ${SLICES}) {
          for (var j = 0u; j < 4; j++) { most = max(most, scores[q * ${P} + 4 * g + j]); }
        }
        slices[n] = most;
      }`,
    )}
    workgroupBarrier();
    ${pairs(
      k => `
      if (q < ${Q}) {
        var m = m${k};
        for (var s = 0u; s < ${SLICES}; s++) { m = max(m, slices[q * ${SLICES} + s]); }
        let factor = exp(m${k} - m);
        var sum = 0.0;
        for (var g = slice; g < ${P / 4}; g += ${SLICES}) {
          ${values.open}
          for (var j = 0u; j < 4; j++) {
            let t = 4 * g + j;
            let score = scores[q * ${P} + t];
            let weight = select(exp(score - m), 0.0, score < -1e38);
            sum += weight;
            ${values.each}
          }
          ${values.close}
        }
        ${carry?.add(k) ?? ''}
        l${k} = fma(l${k}, factor, sum);
        m${k} = m;
        if (slice == 0) { factors[q] = factor; }
      }`,
    )}
    workgroupBarrier();
    ${each(
      columns,
      j => `{ let i = ${shares > 1 ? `lane % ${C}` : `lane + ${j * SIZE}`};
      if (i < ${C} && share < ${shares}) {
        ${each(Q, q => `o${q}_${j} *= factors[${q}];`, ' ')}
        ${values.sum(Q, j, first, end)}
      } }`,
    )}
  }

  workgroupBarrier();
  ${
    carry
      ? `${pairs(k => `if (q < ${Q}) { slices[n] = carry${k}; }`)}
  workgroupBarrier();
  if (lane < ${Q}) {
    var sum = 0.0;
    for (var s = 0u; s < ${SLICES}; s++) { sum += slices[lane * ${SLICES} + s]; }
    factors[lane] = sum * ${carry.share};
  }
  workgroupBarrier();
  ${each(Q, q => each(columns, j => `if (share == 0) { o${q}_${j} += factors[${q}]; }`))}`
      : ''
  }
  ${each(Q, q => {
    const at = `let at = ${stateOf(`${q}u`)};`;
    if (shares === 1)
      return `if (${Math.floor(q / G)} < rows) { ${at} ${each(columns, j => `if (lane + ${j * SIZE} < ${C}) { states[at + lane + ${j * SIZE}] = o${q}_${j}; }`)} }`;
    return `workgroupBarrier();
  slices[lane] = o${q}_0;
  workgroupBarrier();
  if (lane < ${C} && ${Math.floor(q / G)} < rows) { ${at} states[at + lane] = ${each(shares, s => `slices[lane + ${s * C}]`, ' + ')}; }`;
  })}
  workgroupBarrier();
  ${pairs(k => `if (q < ${Q}) { slices[n] = l${k}; if (slice == 0) { factors[q] = m${k}; } }`)}
  workgroupBarrier();
  if (lane < ${Q} && lane / ${G} < rows) {
    var l = 0.0;
    for (var s = 0u; s < ${SLICES}; s++) { l += slices[lane * ${SLICES} + s]; }
    let at = ${stateOf('lane')} + ${C};
    states[at] = factors[lane];
    states[at + 1] = l;
  }
}`,
  };
}
