/**
 * Attention over some pages: the loop that every source of keys and values shares. A workgroup has one KV head, some
 * pages of one sequence (an item) and all queries that read them: the query heads of the group, of one row or of several.
 * A page takes three steps, with a barrier after each:
 *
 *   1. the key part sums products for every token, in a few parts that different lanes have
 *   2. lane n of 32 of a query has tokens 4 n to 4 n + 3: it adds the parts up, and after all have told their largest
 *      score, makes weights
 *   3. the value part sums values under these weights
 *
 * What is unpacked is unpacked once for all queries. It leaves a partial state {o, m, l} a query; `finish` (domain.ts)
 * merges them in order. Every sum runs in an order that depends on the shape alone, not on how many queries share the
 * workgroup.
 */

import type { Kernel } from '../gpu.ts';
import { stateFloats } from './domain.ts';
import { type PageShape, SIZE } from './shape.ts';
import { each } from './text.ts';

/** Lanes that share the tokens of a query in step 2: tokens 4 g to 4 g + 3 belong to lane g mod 32. */
const SLICES = 32;
/** Words of an item. */
export const ITEM = 9;
/** A score below all others. */
export const NEVER = '-3e38';

export interface AttendShape extends PageShape {
  /** Query heads a KV head. */
  group: number;
}

/** What both sides have. Texts may depend on the number of queries, Q. */
interface Part {
  name: string;
  /** Length of a coded vector. */
  dim: number;
  /** Words of workgroup memory, a query and in all. */
  loaded: number;
  fixed: number;
  /** Functions and variables. */
  text(Q: number): string;
  /** Statements before the first page: tables that all lanes fill together. */
  setup?: string;
  /**
   * Constants of a page that a lane reads before it has to wait for others: whatever it can, so that it waits for memory
   * once. In step 2 lane n of 32 has tokens 4 g on with g = n, n + 32 and so on: `chunk` 0, 1 and so on.
   */
  fetch?: string;
  /** Statements at the start of a page, for all lanes; with barriers of its own where it needs them. */
  begin?(Q: number): string;
}

export interface KeyPart extends Part {
  /** Words of a prepared query in `queries: array<u32>`. */
  words: number;
  /** What it reads beside the pages. */
  buffers?: readonly string[];
  /** Constants for all pages. */
  declare?: string;
  /** Puts word n of query q, whose words begin at `origin`, into workgroup memory: n below `taken`. */
  load(Q: number): string;
  taken: number;
  /** How many sums make a score, and the statements that `put` them: put(part, q, t, sum), put4(part, q, t / 4, sums). */
  parts: number;
  sums(Q: number): string;
  /** The scores of query q with tokens 4 g to 4 g + 3 out of `dots`, their sums. */
  score(chunk: number): string;
}

export interface ValuePart extends Part {
  /** A page's weights may have several scales: the largest factor of each, from expressions for tokens 4 g on (vec4f). */
  survey: readonly ((chunk: number) => string)[];
  /**
   * Puts the weights of query q for tokens 4 g to 4 g + 3: `weights`, of which the page's largest is 1, which all go by
   * `whole`; `largestN` is what the survey found. What it adds to `moreN` is added to all dims of group N in the end.
   */
  weigh(Q: number, chunk: number): string;
  /** Once a page and query, by one lane. */
  note?(Q: number): string;
  /** Groups of dims that have sums of their own in common, and the group of dim i; none where nothing is added. */
  groups: number;
  groupOf?: string;
  /** Sums a dim has in the end, of different lanes: declared, rescaled by `factors[q]` and added to, kept: keep(q, i, sum). */
  shares: number;
  /** Which of them a lane has. */
  share: string;
  declare(Q: number): string;
  sum(Q: number): string;
  keep(Q: number): string;
}

/** Where tokens come from; keys and values as a frame reads them. */
export interface SourceOf<Keys, Values> {
  name: string;
  params: readonly string[];
  /** Bindings, by the name that texts know them by; those that none uses are left out. */
  buffers: readonly string[];
  /** Tokens a round. */
  tokens: number;
  keys: Keys;
  values: Values;
  /** Statements at the start of a round, with `item` and `page`, the number of the round, at hand. */
  begin: string;
}

export interface Source extends SourceOf<KeyPart, ValuePart> {
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
  const chunks = Math.ceil(P / 4 / SLICES);
  const N = values.groups;
  const surveyed = values.survey.length;
  // A part of all queries, and so much more that parts do not meet in one bank.
  const stride = Q * P + 8;
  // Where a subgroup is whole slices of one query, it finds their largest by itself.
  const { subgroups = 0 } = shape;
  const together = subgroups >= 4 && SLICES % subgroups === 0 ? subgroups : 1;
  const told = SLICES / together;
  const scratch = Math.max(keys.parts * stride, Q * C);
  const pairs = (text: (k: number) => string) =>
    each(
      perLane,
      k =>
        `{ let n = lane + ${k * SIZE}; let q = n / ${SLICES}; let slice = n % ${SLICES}; if (q < ${Q}) { ${text(k)} } }`,
    );
  const groupsOf = (text: (c: number) => string) =>
    each(chunks, c =>
      (P / 4) % SLICES === 0
        ? `{ let g = slice + ${c * SLICES}; ${text(c)} }`
        : `if (slice + ${c * SLICES} < ${P / 4}) { let g = slice + ${c * SLICES}; ${text(c)} }`,
    );
  /** A lane tells what its slices have: number n of query q. */
  const tell = (n: number, value: string) => `{
      let at = (${n * Q} + q) * ${told} + slice / ${together};
      slices[at / 4][at % 4] = ${value};
    }`;
  /** The largest that was told, by number and query; nothing is told where one subgroup has all. */
  const largest = (name: string, n: number, q: string, own: string) => {
    if (told === 1) return `let ${name} = ${own};`;
    const value = (s: number) => `slices[(${n * Q} + ${q}) * ${told / 4} + ${s}]`;
    if (told < 4)
      return `let ${name} = max(${each(told, s => `slices[((${n * Q} + ${q}) * ${told} + ${s}) / 4][((${n * Q} + ${q}) * ${told} + ${s}) % 4]`, ', ')});`;
    return `var ${name}4 = ${value(0)};
        ${each(told / 4 - 1, s => `${name}4 = max(${name}4, ${value(s + 1)});`, ' ')}
        let ${name} = max(max(${name}4.x, ${name}4.y), max(${name}4.z, ${name}4.w));`;
  };
  const most4 = (v: string) => `max(max(${v}.x, ${v}.y), max(${v}.z, ${v}.w))`;
  const stateOf = (q: string) =>
    `((data[item + 5] + ${q} / ${G} * data[item + 6]) * ${H} + head * ${G} + ${q} % ${G}) * ${stateFloats(C)}`;
  const body = /* wgsl */ `
var<private> bank: u32;
var<workgroup> scratch: array<vec4f, ${Math.ceil(scratch / 4)}>;
var<workgroup> slices: array<vec4f, ${(Math.max(1 + surveyed, N) * Q * SLICES) / 4}>;
var<workgroup> factors: array<f32, ${Q}>;
var<workgroup> more: array<f32, ${Math.max(1, Q * N)}>;
fn put(part: u32, q: u32, t: u32, sum: f32) {
  let at = part * ${stride} + q * ${P} + t;
  scratch[at / 4][at % 4] = sum;
}
fn put4(part: u32, q: u32, g: u32, sums: vec4f) { scratch[part * ${stride / 4} + q * ${P / 4} + g] = sums; }
fn keep(q: u32, i: u32, sum: f32) {
  let at = q * ${C} + i;
  scratch[at / 4][at % 4] += sum;
}
${keys.text(Q)}
${values.text(Q)}

fn main(group: vec3u, lane: u32) {
  bank = lane % 32;
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  let rows = data[item + 1];
  ${keys.setup ?? ''}
  ${values.setup ?? ''}
  for (var at = lane; at < ${Q * keys.taken}; at += ${SIZE}) {
    let q = at / ${keys.taken};
    let n = at % ${keys.taken};
    let row = data[item] + min(q / ${G}, rows - 1);
    let origin = (row * ${H} + head * ${G} + q % ${G}) * ${keys.words};
    ${keys.load(Q)}
  }
  ${each(perLane, k => `var m${k} = ${NEVER}; var l${k} = 0.0; ${each(N, d => `var more${k}_${d} = 0.0;`, ' ')}`)}
  ${keys.declare ?? ''}
  ${values.declare(Q)}
  workgroupBarrier();

  for (var page = 0u; page < data[item + 3]; page++) {
    ${source.begin}
    ${keys.fetch ?? ''}
    ${values.fetch ?? ''}
    ${keys.begin?.(Q) ?? ''}
    ${values.begin?.(Q) ?? ''}
    // 1. sums of keys
    ${keys.sums(Q)}
    // 2. weights
    workgroupBarrier();
    ${each(perLane, k => `var top${k} = ${NEVER}; ${each(surveyed, d => `var survey${k}_${d} = 0.0;`, ' ')} ${each(chunks, c => `var s${k}_${c} = vec4f(${NEVER});`, ' ')}`)}
    ${pairs(
      k => `
      var top4 = vec4f(${NEVER});
      ${each(surveyed, d => `var survey${d} = vec4f(0.0);`, ' ')}
      ${groupsOf(
        c => `
        let dots = ${each(keys.parts, part => `scratch[${(part * stride) / 4} + q * ${P / 4} + g]`, ' + ')};
        let scores = ${keys.score(c)};
        let t0 = 4 * g;
        s${k}_${c} = select(vec4f(${NEVER}), scores, vec4<bool>(${each(4, j => source.seen.replaceAll('$t', `(t0 + ${j})`), ', ')}));
        top4 = max(top4, s${k}_${c});
        ${each(surveyed, d => `survey${d} = max(survey${d}, ${values.survey[d](c)});`, ' ')}`,
      )}
      top${k} = ${most4('top4')};
      ${each(surveyed, d => `survey${k}_${d} = ${most4(`survey${d}`)};`, ' ')}`,
    )}
    ${together > 1 ? each(perLane, k => `top${k} = subgroupMax(top${k}); ${each(surveyed, d => `survey${k}_${d} = subgroupMax(survey${k}_${d});`, ' ')}`) : ''}
    ${
      told > 1
        ? `${pairs(k => `${tell(0, `top${k}`)} ${each(surveyed, d => `if (q == 0) ${tell(d + 1, `survey${k}_${d}`)}`)}`)}
    workgroupBarrier();`
        : ''
    }
    ${pairs(
      k => `
      ${largest('top', 0, 'q', `top${k}`)}
      ${each(surveyed, d => largest(`largest${d}`, d + 1, '0', `survey${k}_${d}`))}
      let m = max(m${k}, top);
      let factor = exp(m${k} - m);
      let whole = exp(top - m);
      var sum = 0.0;
      ${each(N, d => `var more${d} = 0.0;`, ' ')}
      ${groupsOf(
        c => `
        let weights = select(exp(s${k}_${c} - top), vec4f(0.0), s${k}_${c} < vec4f(-1e38));
        sum += (weights.x + weights.y) + (weights.z + weights.w);
        ${values.weigh(Q, c)}`,
      )}
      ${each(N, d => `more${k}_${d} = fma(more${k}_${d}, factor, more${d} * whole);`, ' ')}
      l${k} = fma(l${k}, factor, sum * whole);
      m${k} = m;
      if (slice == 0) {
        factors[q] = factor;
        ${values.note?.(Q) ?? ''}
      }`,
    )}
    workgroupBarrier();
    // 3. sums of values
    ${values.sum(Q)}
    // done
  }

  workgroupBarrier();
  for (var at = lane; at < ${Math.ceil((Q * C) / 4)}; at += ${SIZE}) { scratch[at] = vec4f(0.0); }
  for (var turn = 0u; turn < ${values.shares}; turn++) {
    workgroupBarrier();
    if (${values.share} == turn) { ${values.keep(Q)} }
  }
  workgroupBarrier();
  ${
    N > 0
      ? `${pairs(k => each(N, d => `slices[(${d * Q} + q) * ${SLICES / 4} + slice / 4][slice % 4] = more${k}_${d};`))}
  workgroupBarrier();
  if (lane < ${N * Q}) {
    var sum = slices[lane * ${SLICES / 4}];
    for (var s = 1u; s < ${SLICES / 4}; s++) { sum += slices[lane * ${SLICES / 4} + s]; }
    more[lane] = (sum.x + sum.y) + (sum.z + sum.w);
  }
  workgroupBarrier();`
      : ''
  }
  for (var at = lane; at < ${Q * C}; at += ${SIZE}) {
    let q = at / ${C};
    let i = at % ${C};
    if (q / ${G} < rows) {
      states[${stateOf('q')} + i] = scratch[at / 4][at % 4]${N > 0 ? ` + more[(${values.groupOf ?? '0'}) * ${Q} + q]` : ''};
    }
  }
  workgroupBarrier();
  ${pairs(k => `slices[q * ${SLICES / 4} + slice / 4][slice % 4] = l${k}; if (slice == 0) { factors[q] = m${k}; }`)}
  workgroupBarrier();
  if (lane < ${Q} && lane / ${G} < rows) {
    var l = slices[lane * ${SLICES / 4}];
    for (var s = 1u; s < ${SLICES / 4}; s++) { l += slices[lane * ${SLICES / 4} + s]; }
    let at = ${stateOf('lane')} + ${4 * Math.ceil(C / 4)};
    states[at] = factors[lane];
    states[at + 1] = (l.x + l.y) + (l.z + l.w);
  }
}`;
  const bound = [...source.buffers, ...(keys.buffers ?? [])].filter(text =>
    `${source.begin}${body}`.includes(`${text.slice(0, text.indexOf(':'))}[`),
  );
  return {
    name: `attend ${source.name} ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads} in ${together}`,
    params: ['table', 'items', ...source.params],
    buffers: ['data: array<u32>', 'queries: array<u32>', ...bound, 'write states: array<f32>'],
    size: SIZE,
    body,
    enable: /quadSwap|subgroupMax/.test(body) ? ['subgroups'] : [],
  };
}
