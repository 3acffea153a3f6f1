/**
 * Attention over a few tokens at a time: the loop that every source of keys and values shares. A workgroup has one KV
 * head, some pages of one sequence (an item) and all queries that read them: the query heads of the group, of one row or
 * of several. Lanes are tokens while scores are made and dims while values are summed; what is unpacked is unpacked once
 * for all queries. It leaves a partial state {o, m, l} a query; `finish` (domain.ts) merges them in order.
 *
 * Every sum runs in an order that depends on the shape alone, not on how many queries share the workgroup.
 */
import type { Fragment } from '../../fragment.ts';
import type { Kernel } from '../gpu.ts';
import { blockAt, loads, type PageShape, pageReader } from './read.ts';
import { each } from './text.ts';

export const SIZE = 128;
/** Of the weights of a page: token t belongs to slice t mod 32. */
const SLICES = 32;
/** Pages an item: fixed, so that a result does not depend on the batch. */
export const SPLIT = 4;
/** Tokens of the f16 tail and sinks that are read at a time. */
export const HALF_TOKENS = 128;
/** Words of an item. */
export const ITEM = 9;
const NEVER = '-3e38';

export interface AttendShape extends PageShape {
  /** Query heads a KV head. */
  group: number;
}

/** Where keys and values come from. */
interface Source {
  name: string;
  params: readonly string[];
  buffers: readonly string[];
  /** Tokens a round, and lengths of coded vectors. */
  tokens: number;
  keyDim: number;
  valueDim: number;
  text: string;
  /** Statements at the start of a round, with `item` and `round` at hand; they may fill `query`. */
  begin: string;
  /** Statements at a token, with `t` at hand. */
  locate: string;
  /** Expressions, with `t`, `i`, `q` and what `begin` declared at hand. */
  key: string;
  keyScale: string;
  value: string;
  valueScale: string;
  seen: string;
  /** Of query q, from the words of the prepared queries: the vector's stride and what is added to its dots. */
  queryStride: number;
  queryFactor: string;
  constant: string;
}

/** Items of pages: row, rows, first word of the list of slots, pages, tokens to pass over, state, states a row. */
export function attendPages(keys: Fragment, values: Fragment, names: string, shape: AttendShape, rows: number): Kernel {
  const { headDim: D, pageTokens: P } = shape;
  return attend(
    {
      name: `pages ${names}`,
      params: ['stride', 'valueOffset'],
      buffers: ['pool: array<u32>'],
      tokens: P,
      keyDim: keys.codedDim,
      valueDim: values.codedDim,
      text: `${loads}\n${pageReader('key', keys, { ...shape, headDim: D })}\n${pageReader('value', values, shape)}`,
      begin: `
    let keyPage = data[p.table + data[item + 2] + round] * p.stride;
    let valuePage = keyPage + p.valueOffset;
    let keyBlock = ${blockAt(keys).replace('page', 'keyPage')};
    let valueBlock = ${blockAt(values).replace('page', 'valuePage')};`,
      locate: '',
      key: 'key_unit(keyBlock, t, i)',
      keyScale: 'key_scale(keyPage, keyBlock, t)',
      value: 'value_unit(valueBlock, t, i)',
      valueScale: 'value_scale(valuePage, valueBlock, t)',
      seen: `round * ${P} + t >= data[item + 4]`,
      queryStride: keys.codedDim + 1,
      queryFactor: '',
      constant: `queries[origin + ${keys.codedDim}]`,
    },
    shape,
    rows,
  );
}

/** Items of f16 tokens: row, rows, 0 for a tail and 1 for sinks, rounds, slot, state, states a row, first token, end. */
export function attendHalves(shape: AttendShape, rows: number): Kernel {
  const { headDim: D, kvHeads } = shape;
  const read = (side: number) => `half_at(sinks, at + ${side} * ${(kvHeads * D) / 2} * room, i)`;
  return attend(
    {
      name: 'halves',
      params: ['tailStride', 'tailTokens', 'sinkStride', 'sinkTokens', 'scale: f32'],
      buffers: ['tails: array<u32>', 'sinks_: array<u32>'],
      tokens: HALF_TOKENS,
      keyDim: D,
      valueDim: D,
      text: /* wgsl */ `
fn half_at(sinks: bool, word: u32, i: u32) -> f32 {
  let at = word + i / 2;
  var both: u32;
  if (sinks) { both = sinks_[at]; } else { both = tails[at]; }
  return unpack2x16float(both >> (16 * (i & 1))).x;
}`,
      begin: `
    let sinks = data[item + 2] == 1;
    let room = select(p.tailTokens, p.sinkTokens, sinks);
    let start = data[item + 4] * select(p.tailStride, p.sinkStride, sinks) / 4 + head * room * ${D / 2};
    let first = data[item + 7] + round * ${HALF_TOKENS};`,
      locate: `let at = start + ((first + t) % room) * ${D / 2};`,
      key: read(0),
      keyScale: '1.0',
      value: read(1),
      valueScale: '1.0',
      seen: `first + t < data[item + 8] + select(q / ${shape.group}, 0u, sinks)`,
      queryStride: D,
      queryFactor: ' * p.scale',
      constant: '0.0',
    },
    shape,
    rows,
  );
}

function attend(source: Source, shape: AttendShape, rows: number): Kernel {
  const { group: G, kvHeads } = shape;
  const { tokens: P, keyDim, valueDim } = source;
  const H = G * kvHeads;
  const Q = G * rows;
  const perLane = Math.ceil((Q * SLICES) / SIZE);
  /** Values are summed by as many groups of lanes as fit, each over its share of the tokens. */
  const shares = SIZE % valueDim === 0 ? SIZE / valueDim : 1;
  const columns = Math.ceil(valueDim / SIZE);
  const [from, to] = shares > 1 ? [`share * ${P / shares}`, `(share + 1) * ${P / shares}`] : ['0u', String(P)];
  const pair = (k: number) => `let n = lane + ${k * SIZE}; let q = n / ${SLICES}; let slice = n % ${SLICES};`;
  return {
    name: `attend ${source.name} ${keyDim}/${valueDim} ${P} x${rows} of ${G}/${kvHeads}`,
    params: ['table', 'items', ...source.params],
    buffers: ['data: array<u32>', 'queries: array<f32>', ...source.buffers, 'write states: array<f32>'],
    size: SIZE,
    body: /* wgsl */ `
${source.text}
var<workgroup> query: array<f32, ${Q * keyDim}>;
var<workgroup> constants: array<f32, ${Q}>;
var<workgroup> scores: array<f32, ${Q * P}>;
var<workgroup> slices: array<f32, ${Math.max(Q * SLICES, shares > 1 ? SIZE : 0)}>;
var<workgroup> factors: array<f32, ${Q}>;

fn largest(q: u32) -> f32 {
  var m = slices[q * ${SLICES}];
  for (var s = 1u; s < ${SLICES}; s++) { m = max(m, slices[q * ${SLICES} + s]); }
  return m;
}

fn main(group: vec3u, lane: u32) {
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  let rows = data[item + 1];
  for (var n = lane; n < ${Q * keyDim}; n += ${SIZE}) {
    let q = n / ${keyDim};
    let row = data[item] + min(q / ${G}, rows - 1);
    let origin = (row * ${H} + head * ${G} + q % ${G}) * ${source.queryStride};
    query[n] = queries[origin + n % ${keyDim}]${source.queryFactor};
    if (n % ${keyDim} == 0) { constants[q] = ${source.constant}; }
  }
  ${each(perLane, k => `var m${k} = ${NEVER}; var l${k} = 0.0;`)}
  ${each(Q, q => each(columns, j => `var o${q}_${j} = 0.0;`, ' '))}
  let share = lane / ${valueDim};

  for (var round = 0u; round < data[item + 3]; round++) {
    ${source.begin}
    workgroupBarrier();
    for (var t = lane; t < ${P}; t += ${SIZE}) {
      ${source.locate}
      ${each(Q, q => `var s${q} = 0.0;`, ' ')}
      for (var i = 0u; i < ${keyDim}; i++) {
        let key = ${source.key};
        ${each(Q, q => `s${q} = fma(query[${q * keyDim} + i], key, s${q});`)}
      }
      let scale = ${source.keyScale};
      ${each(Q, q => `{ let q = ${q}u; scores[${q * P} + t] = select(${NEVER}, fma(s${q}, scale, constants[q]), ${source.seen}); }`)}
    }
    workgroupBarrier();
    ${each(
      perLane,
      k => `{ ${pair(k)}
      if (q < ${Q}) {
        var most = ${NEVER};
        for (var t = slice; t < ${P}; t += ${SLICES}) { most = max(most, scores[q * ${P} + t]); }
        slices[n] = most;
      } }`,
    )}
    workgroupBarrier();
    ${each(
      perLane,
      k => `{ ${pair(k)}
      if (q < ${Q}) {
        let m = max(m${k}, largest(q));
        let factor = exp(m${k} - m);
        var sum = 0.0;
        for (var t = slice; t < ${P}; t += ${SLICES}) {
          let score = scores[q * ${P} + t];
          let weight = select(exp(score - m), 0.0, score < -1e38);
          sum += weight;
          scores[q * ${P} + t] = weight * ${source.valueScale};
        }
        l${k} = fma(l${k}, factor, sum);
        m${k} = m;
        if (slice == 0) { factors[q] = factor; }
      } }`,
    )}
    workgroupBarrier();
    ${each(
      columns,
      j => `{ let i = ${shares > 1 ? `lane % ${valueDim}` : `lane + ${j * SIZE}`};
      if (i < ${valueDim}) {
        ${each(Q, q => `o${q}_${j} *= factors[${q}];`, ' ')}
        for (var t = ${from}; t < ${to}; t++) {
          ${source.locate}
          let value = ${source.value};
          ${each(Q, q => `o${q}_${j} = fma(scores[${q * P} + t], value, o${q}_${j});`)}
        }
      } }`,
    )}
  }

  ${each(
    Q,
    q => `if (${Math.floor(q / G)} < rows) {
    let at = ((data[item + 5] + ${Math.floor(q / G)} * data[item + 6]) * ${H} + head * ${G} + ${q % G}) * ${valueDim + 2};
    ${
      shares > 1
        ? `workgroupBarrier();
    slices[lane] = o${q}_0;
    workgroupBarrier();
    if (lane < ${valueDim}) { states[at + lane] = ${each(shares, s => `slices[lane + ${s * valueDim}]`, ' + ')}; }`
        : each(columns, j => `if (lane + ${j * SIZE} < ${valueDim}) { states[at + lane + ${j * SIZE}] = o${q}_${j}; }`)
    }
  }`,
  )}
  workgroupBarrier();
  ${each(perLane, k => `{ ${pair(k)} if (q < ${Q}) { slices[n] = l${k}; if (slice == 0) { factors[q] = m${k}; } } }`)}
  workgroupBarrier();
  if (lane < ${Q} && lane / ${G} < rows) {
    var l = 0.0;
    for (var s = 0u; s < ${SLICES}; s++) { l += slices[lane * ${SLICES} + s]; }
    let at = ((data[item + 5] + lane / ${G} * data[item + 6]) * ${H} + head * ${G} + lane % ${G}) * ${valueDim + 2} + ${valueDim};
    states[at] = factors[lane];
    states[at + 1] = l;
  }
}`,
  };
}
