/**
 * The f16 tokens of tails and sinks for many rows at once: a prompt's. Each row has a team of 32 lanes that does what the
 * lanes of halves.ts do for one row, step by step and with the same bits, but tokens come through workgroup memory, where
 * all teams find them.
 */
import type { Kernel } from '../../gpu.ts';
import { type AttendShape, ITEM, NEVER } from '../attend.ts';
import { stateFloats } from '../domain.ts';
import { HALF_TOKENS, halfReader } from '../sources.ts';
import { each } from '../text.ts';
import { of, vectorOf, vectors } from './attend.ts';
import { ROUND } from './halves.ts';
import { LANES } from './talk.ts';

/** Eights of dims whose keys are in workgroup memory at a time. */
const EIGHTS = 2;
/** Vectors of four that keys, and then values, take there. */
const TILE = 2 * EIGHTS * ROUND;

/** Vectors that a team's queries take, then its weights, and in the end its sums. */
const ownOf = ({ headDim, group }: AttendShape) =>
  Math.max(Math.max(ROUND, 8 * Math.ceil(headDim / 8)) * vectors(group), 2 * Math.ceil(headDim / 8) * group);

/** Bytes of workgroup memory. */
export const rowsBytes = (shape: AttendShape, rows: number): number => 16 * (TILE + rows * ownOf(shape));

/** Items are those of ../sources.ts, of up to `rows` rows. */
export function halvesByRows(shape: AttendShape, rows: number): Kernel {
  const { headDim: D, group: G, kvHeads } = shape;
  const { text, params, buffers, begin } = halfReader(shape);
  const H = G * kvHeads;
  const V = vectors(G);
  const E = Math.ceil(D / 8);
  const size = rows * LANES;
  // Tokens that lanes take side by side; several eights a lane where a row takes more than all of them.
  const shares = Math.max(1, Math.floor(LANES / E));
  const columns = Math.ceil(E / LANES);
  const chunk = (j: number) => (shares > 1 ? `(l % ${E})` : `min(l + ${j * LANES}, ${E - 1}u)`);
  const live = (j: number) => (shares > 1 ? `slot < ${shares}` : `l + ${j * LANES} < ${E}`);
  /** Tokens whose values are in workgroup memory at a time. */
  const tokens = Math.floor(Math.min(ROUND, TILE / (2 * E)) / shares) * shares;
  const mine = `team * ${ownOf(shape)}`;
  const query = (i: string, v: number) => `own[${mine} + (${i}) * ${V} + ${v}]`;
  const weighed = (t: string, v: number) => `own[${mine} + (${t}) * ${V} + ${v}]`;
  const sums = (q: number, at: string) => `own[${mine} + ${q * 2 * E} + ${at}]`;
  const most4 = (v: string) => `max(max(${v}.x, ${v}.y), max(${v}.z, ${v}.w))`;
  /** Eights that an invocation brings, number n of those of some eights of all keys, or of all eights of some values. */
  const [keys, values] = [Math.ceil((EIGHTS * ROUND) / size), Math.ceil((tokens * E) / size)];
  const bring = (count: number, text: (k: number) => string) =>
    each(count, k => `{ let n = lane + ${k * size}; ${text(k)} }`);
  const fetchKeys = (some: string) =>
    bring(
      keys,
      k =>
        `let t = n % ${ROUND}; let e = ${some} + n / ${ROUND}; if (n < ${EIGHTS * ROUND} && t < count && e < ${E}) { eight${k} = key_eight(sinks, start, room, first + t, e); }`,
    );
  const keepKeys = bring(
    keys,
    k =>
      `if (n < ${EIGHTS * ROUND}) { let at = 2 * (n / ${ROUND}) * ${ROUND} + n % ${ROUND}; tile[at] = eight${k}.low; tile[at + ${ROUND}] = eight${k}.high; }`,
  );
  const fetchValues = (some: string) =>
    bring(
      values,
      k =>
        `let t = ${some} + n / ${E}; if (n < ${tokens * E} && t < count) { eight${k} = value_eight(sinks, start, room, first + t, n % ${E}); }`,
    );
  const keepValues = bring(
    values,
    k =>
      `if (n < ${tokens * E}) { let at = n / ${E} * ${2 * E} + n % ${E}; tile[at] = eight${k}.low; tile[at + ${E}] = eight${k}.high; }`,
  );
  return {
    name: `attend halves by rows ${D} x${rows} of ${G}/${kvHeads}`,
    params: ['table', 'items', 'four', ...params],
    buffers: ['data: array<u32>', 'queries: array<f32>', ...buffers, 'write states: array<vec4f>'],
    size,
    body: /* wgsl */ `
${text}
var<workgroup> tile: array<vec4f, ${TILE}>;
var<workgroup> own: array<vec4f, ${rows * ownOf(shape)}>;
fn across(lane: u32, x: vec4f, by: u32) -> vec4f {
  workgroupBarrier();
  tile[lane] = x;
  workgroupBarrier();
  return tile[lane ^ by];
}
fn main(group: vec3u, lane: u32) {
  let team = lane / ${LANES};
  let l = lane % ${LANES};
  let item = p.table + p.items + ${ITEM} * group.x;
  let head = group.y;
  let slot = ${shares > 1 ? `l / ${E}` : '0u'};
  ${each(V, v => `var m${v} = vec4f(${NEVER}); var l${v} = vec4f(0.0);`)}
  ${each(columns, j => each(G, q => `var low${j}_${q} = vec4f(0.0); var high${j}_${q} = vec4f(0.0);`, ' '))}
  for (var page = 0u; page < (data[item + 3] * ${HALF_TOKENS} + ${ROUND - 1}) / ${ROUND}; page++) {
    ${begin}
    let first = data[item + 7] + page * ${ROUND};
    let end = min(data[item + 8] + select(data[item + 1] - 1, 0u, sinks), data[item + 7] + data[item + 3] * ${HALF_TOKENS});
    let count = min(${ROUND}u, end - min(end, first));
    ${each(Math.max(keys, values), k => `var eight${k}: Eight;`, ' ')}
    // 1. dots
    ${fetchKeys('0u')}
    workgroupBarrier();
    for (var i = l; i < ${8 * E}; i += ${LANES}) {
      let at = ((data[item] + min(team, data[item + 1] - 1)) * ${H} + head * ${G}) * ${D} + min(i, ${D - 1}u);
      ${each(V, v => `${query('i', v)} = vec4f${vectorOf(G, v, q => `queries[at + ${q * D}]`)} * p.scale;`)}
    }
    ${each(G, q => `var dots${q} = vec4f(0.0);`, ' ')}
    for (var some = 0u; some < ${E}; some += ${EIGHTS}) {
      workgroupBarrier();
      ${keepKeys}
      workgroupBarrier();
      ${fetchKeys(`(some + ${EIGHTS})`)}
      for (var four = 0u; four < min(${2 * EIGHTS}u, 2 * (${E} - some)); four++) {
        ${each(4, i => each(V, v => `let x${i}_${v} = ${query(`8 * some + 4 * four + ${i}`, v)};`, ' '))}
        ${each(
          4,
          j => `{
          let key = tile[four * ${ROUND} + l + ${LANES * j}];
          ${each(4, i => each(G, q => `dots${q}[${j}] = fma(${of(`x${i}_`, q)}, key[${i}], dots${q}[${j}]);`, ' '))}
        }`,
        )}
      }
    }
    ${fetchValues('0u')}
    // 2. weights
    let until = data[item + 8] + select(team, 0u, sinks);
    let seen = vec4<bool>(${each(4, j => `(l + ${LANES * j} < count) & (first + l + ${LANES * j} < until)`, ', ')});
    ${each(V, v => `var top${v} = vec4f(${NEVER}); var sum${v} = vec4f(0.0);`)}
    ${each(G, q => `let s${q} = select(vec4f(${NEVER}), dots${q}, seen); ${of('top', q)} = ${most4(`s${q}`)};`)}
    ${each(
      V,
      v => `for (var by = 1u; by < ${LANES}; by *= 2) { top${v} = max(top${v}, across(lane, top${v}, by)); }
    let most${v} = max(m${v}, top${v});
    let kept${v} = exp(m${v} - most${v});
    let whole${v} = exp(top${v} - most${v});
    m${v} = most${v};`,
    )}
    ${each(
      G,
      q => `let w${q} = select(exp(s${q} - vec4f(${of('top', q)})), vec4f(0.0), s${q} < vec4f(-1e38));
    ${of('sum', q)} += (w${q}.x + w${q}.y) + (w${q}.z + w${q}.w);`,
    )}
    ${each(V, v => `l${v} = fma(l${v}, kept${v}, sum${v} * whole${v});`, ' ')}
    // 3. values
    ${each(4, j => each(V, v => `${weighed(`l + ${LANES * j}`, v)} = vec4f${vectorOf(G, v, q => `w${q}[${j}]`)} * whole${v};`))}
    ${each(columns, j => each(G, q => `low${j}_${q} *= ${of('kept', q)}; high${j}_${q} *= ${of('kept', q)};`, ' '))}
    for (var some = 0u; some < count; some += ${tokens}) {
      workgroupBarrier();
      ${keepValues}
      workgroupBarrier();
      ${fetchValues(`some + ${tokens}`)}
      for (var t = slot; t < min(${tokens}u, count - some); t += ${shares}) {
        ${each(V, v => `let x${v} = ${weighed('some + t', v)};`, ' ')}
        ${each(
          columns,
          j => `{
          let low = tile[t * ${2 * E} + ${chunk(j)}];
          let high = tile[t * ${2 * E} + ${E} + ${chunk(j)}];
          ${each(G, q => `low${j}_${q} = fma(vec4f(${of('x', q)}), low, low${j}_${q}); high${j}_${q} = fma(vec4f(${of('x', q)}), high, high${j}_${q});`)}
        }`,
        )}
      }
    }
  }
  ${each(V, v => `for (var by = 1u; by < ${LANES}; by *= 2) { l${v} += across(lane, l${v}, by); }`)}
  workgroupBarrier();
  for (var n = l; n < ${2 * E * G}; n += ${LANES}) { own[${mine} + n] = vec4f(0.0); }
  for (var turn = 0u; turn < ${shares}; turn++) {
    workgroupBarrier();
    ${each(
      columns,
      j => `if (slot == turn && ${live(j)}) {
      ${each(G, q => `${sums(q, `2 * ${chunk(j)}`)} += low${j}_${q}; ${sums(q, `2 * ${chunk(j)} + 1`)} += high${j}_${q};`)}
    }`,
    )}
  }
  workgroupBarrier();
  if (team >= data[item + 1]) { return; }
  ${each(
    G,
    q => `{
    let at = ((data[item + 5] + team * data[item + 6]) * ${H} + head * ${G} + ${q}) * ${stateFloats(D) / 4};
    for (var n = l; n < ${Math.ceil(D / 4)}; n += ${LANES}) { states[at + n] = ${sums(q, 'n')}; }
    if (l == 0) { states[at + ${Math.ceil(D / 4)}] = vec4f(${of('m', q)}, ${of('l', q)}, 0.0, 0.0); }
  }`,
  )}
}`,
  };
}
