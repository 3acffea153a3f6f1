/**
 * Attention over some pages as floats, by 128 lanes: what reads every codec in every shape, and precisely. A workgroup has one KV head, some
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
import { each, most4 } from './text.ts';

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
  /** Functions and variables. */
  text(Q: number): string;
  /** Statements before the first page: tables that all lanes fill together. */
  setup?: string;
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
  /** Puts the weights of query q for tokens 4 g to 4 g + 3: `weights`, of which the page's largest is 1, all by `whole`. */
  weigh(Q: number, chunk: number): string;
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
 * of the source's own. `parts`: workgroups that share the query heads of a KV head, where one has no room for all of them.
 */
export function attend(source: Source, shape: AttendShape, rows: number, parts = 1): Kernel {
  const { kvHeads } = shape;
  const { tokens: P, keys, values } = source;
  const G = shape.group / parts;
  const H = shape.group * kvHeads;
  const Q = G * rows;
  const C = values.dim;
  const perLane = Math.ceil((Q * SLICES) / SIZE);
  const chunks = Math.ceil(P / 4 / SLICES);
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
  /** A lane tells what its slices of query q have. */
  const tell = (value: string) => `{
      let at = q * ${told} + slice / ${together};
      slices[at / 4][at % 4] = ${value};
    }`;
  /** The largest that was told; nothing is told where one subgroup has all. */
  const largest = (own: string) => {
    if (told === 1) return `let top = ${own};`;
    const value = (s: number) => `slices[q * ${told / 4} + ${s}]`;
    if (told < 4)
      return `let top = max(${each(told, s => `slices[(q * ${told} + ${s}) / 4][(q * ${told} + ${s}) % 4]`, ', ')});`;
    return `var all4 = ${value(0)};
        ${each(told / 4 - 1, s => `all4 = max(all4, ${value(s + 1)});`, ' ')}
        let top = ${most4('all4')};`;
  };
  const stateOf = (q: string) =>
    `((data[item + 5] + ${q} / ${G} * data[item + 6]) * ${H} + group.y * ${G} + ${q} % ${G}) * ${stateFloats(C)}`;
  const body = /* wgsl */ `
var<private> bank: u32;
var<workgroup> scratch: array<vec4f, ${Math.ceil(scratch / 4)}>;
var<workgroup> slices: array<vec4f, ${(Q * SLICES) / 4}>;
var<workgroup> factors: array<f32, ${Q}>;
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
  let head = group.y${parts > 1 ? ` / ${parts}` : ''};
  let rows = data[item + 1];
  ${keys.setup ?? ''}
  ${values.setup ?? ''}
  for (var at = lane; at < ${Q * keys.taken}; at += ${SIZE}) {
    let q = at / ${keys.taken};
    let n = at % ${keys.taken};
    let row = data[item] + min(q / ${G}, rows - 1);
    let origin = (row * ${H} + group.y * ${G} + q % ${G}) * ${keys.words};
    ${keys.load(Q)}
  }
  ${each(perLane, k => `var m${k} = ${NEVER}; var l${k} = 0.0;`)}
  ${keys.declare ?? ''}
  ${values.declare(Q)}
  workgroupBarrier();

  for (var page = 0u; page < data[item + 3]; page++) {
    ${source.begin}
    ${keys.begin?.(Q) ?? ''}
    ${values.begin?.(Q) ?? ''}
    // 1. sums of keys
    ${keys.sums(Q)}
    // 2. weights
    workgroupBarrier();
    ${each(perLane, k => `var top${k} = ${NEVER}; ${each(chunks, c => `var s${k}_${c} = vec4f(${NEVER});`, ' ')}`)}
    ${pairs(
      k => `
      var top4 = vec4f(${NEVER});
      ${groupsOf(
        c => `
        let dots = ${each(keys.parts, part => `scratch[${(part * stride) / 4} + q * ${P / 4} + g]`, ' + ')};
        let scores = ${keys.score(c)};
        let t0 = 4 * g;
        s${k}_${c} = select(vec4f(${NEVER}), scores, vec4<bool>(${each(4, j => source.seen.replaceAll('$t', `(t0 + ${j})`), ', ')}));
        top4 = max(top4, s${k}_${c});`,
      )}
      top${k} = ${most4('top4')};`,
    )}
    ${together > 1 ? each(perLane, k => `top${k} = subgroupMax(top${k});`) : ''}
    ${
      told > 1
        ? `${pairs(k => tell(`top${k}`))}
    workgroupBarrier();`
        : ''
    }
    ${pairs(
      k => `
      ${largest(`top${k}`)}
      let m = max(m${k}, top);
      let factor = exp(m${k} - m);
      let whole = exp(top - m);
      var sum = 0.0;
      ${groupsOf(
        c => `
        let weights = select(exp(s${k}_${c} - top), vec4f(0.0), s${k}_${c} < vec4f(-1e38));
        sum += (weights.x + weights.y) + (weights.z + weights.w);
        ${values.weigh(Q, c)}`,
      )}
      l${k} = fma(l${k}, factor, sum * whole);
      m${k} = m;
      if (slice == 0) { factors[q] = factor; }`,
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
  for (var at = lane; at < ${Q * C}; at += ${SIZE}) {
    let q = at / ${C};
    let i = at % ${C};
    if (q / ${G} < rows) {
      states[${stateOf('q')} + i] = scratch[at / 4][at % 4];
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
    name: `attend ${source.name} ${keys.name}/${values.name} ${P} x${rows} of ${G}/${kvHeads} in ${together}${parts > 1 ? `, ${parts} parts` : ''}`,
    params: ['table', 'items', ...source.params],
    buffers: ['data: array<u32>', 'queries: array<u32>', ...bound, 'write states: array<f32>'],
    size: SIZE,
    body,
    enable: together > 1 ? ['subgroups'] : [],
  };
}
