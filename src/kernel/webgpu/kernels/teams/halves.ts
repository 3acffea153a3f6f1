/**
 * The f16 tokens of tails and sinks as floats; a team has up to 32 of them, `own_count`.
 *
 *   keys     four lanes a row, eight dims of it at a time; each ends up with one of four tokens
 *   values   lanes have eight dims each of every few tokens; each ends up with some of these dims
 */

import { each } from '../text.ts';
import { type KeyPart, type ValuePart, vectors } from './attend.ts';
import { LANES, SIZE } from './talk.ts';

/** Rows of heads that lanes can share so. */
export const fitsHalves = (D: number): boolean => [32, 64, 128, 256].includes(D);

const EIGHTS = Number(process.env.KV_EIGHTS ?? 2);

/** Token of a lane, from the first of all teams on. */
export const halfToken = `(${LANES} * team + lane / 4 + 8 * (lane % 4))`;

export function halfKeys(D: number, text: string): KeyPart {
  // Eights of a row that a lane reads before the first of them is used.
  const eights = Math.min(EIGHTS, D / 32);
  return {
    name: `f16 ${D}`,
    dim: D,
    words: D,
    loaded: D,
    text: Q => `${text}\nvar<workgroup> query: array<vec4f, ${(D / 4) * Q}>;`,
    load: Q => `
  for (var at = own; at < ${Q * D}; at += ${SIZE}) {
    let q = at / ${D};
    let n = at % ${D};
    query[n / 4 * ${Q} + q][n % 4] = bitcast<f32>(queries[origin(item, head, q) + n]) * p.scale;
  }`,
    sums: Q => `
  ${each(4, i => each(vectors(Q), v => `var sum${i}_${v} = vec4f(0.0);`, ' '))}
  for (var eight = lane % 4; eight < select(0u, ${D / 8}u, own_count > 0); eight += ${4 * eights}) {
    ${each(eights, k => each(4, i => `let e${k}_${i} = key_eight(sinks, start, room, first + ${LANES} * team + lane / 4 + ${8 * i}, eight + ${4 * k});`))}
    ${each(eights, k => each(Q, q => `{ let x = query[2 * (eight + ${4 * k}) * ${Q} + ${q}]; let y = query[(2 * (eight + ${4 * k}) + 1) * ${Q} + ${q}]; ${each(4, i => `${dotOf(`sum${i}_${q >> 2}[${q & 3}]`, 'x', `e${k}_${i}.low`)} ${dotOf(`sum${i}_${q >> 2}[${q & 3}]`, 'y', `e${k}_${i}.high`)}`)} }`))}
  }
  let odd = (lane & 1) != 0;
  let upper = (lane & 2) != 0;
  ${each(
    vectors(Q),
    v => `let first_two${v} = select(sum0_${v}, sum1_${v}, odd) + across(select(sum1_${v}, sum0_${v}, odd), 1u);
  let last_two${v} = select(sum2_${v}, sum3_${v}, odd) + across(select(sum3_${v}, sum2_${v}, odd), 1u);
  let dots${v} = select(first_two${v}, last_two${v}, upper) + across(select(last_two${v}, first_two${v}, upper), 2u);`,
  )}`,
    score: (_, __, v) => `dots${v}`,
  };
}

const dotOf = (sum: string, x: string, y: string) => each(4, k => `${sum} = fma(${x}[${k}], ${y}[${k}], ${sum});`, ' ');

/** Tokens that are read before the first of them is used. */
const AHEAD = Number(process.env.KV_HALF ?? 8);

export function halfValues(D: number): ValuePart {
  const row = D / 8;
  const slots = LANES / row;
  const ahead = Math.min(AHEAD, LANES / slots);
  /** Lanes with the same eights halve them among themselves until each has its own. */
  const halving = (Q: number) => {
    const lines: string[] = [];
    for (let [by, count] = [row, 4]; by < LANES; by *= 2, count /= 2)
      lines.push(
        each(count, k =>
          each(
            vectors(Q),
            v =>
              `e${k}_${v} = select(e${k}_${v}, e${k + count}_${v}, (lane & ${by}u) != 0) + across(select(e${k + count}_${v}, e${k}_${v}, (lane & ${by}u) != 0), ${by}u);`,
          ),
        ),
      );
    return lines.join('\n  ');
  };
  const place = Array.from({ length: Math.log2(slots) }, (_, n) => `(lane / ${row * 2 ** n} % 2) * ${4 / 2 ** n}`);
  const dims = D / LANES;
  return {
    name: `f16 ${D}`,
    dim: D,
    loaded: SIZE,
    text: Q => `var<workgroup> weighed: array<vec4f, ${SIZE * vectors(Q)}>;`,
    sum: Q => `
  workgroupBarrier();
  ${each(vectors(Q), v => `weighed[${halfToken} * ${vectors(Q)} + ${v}] = w0_${v};`, ' ')}
  workgroupBarrier();
  {
  ${each(8, k => each(vectors(Q), v => `var e${k}_${v} = vec4f(0.0);`, ' '))}
  for (var t = ${LANES} * team + lane / ${row}; t < ${LANES} * team + own_count; t += ${slots * ahead}) {
    ${each(ahead, u => `let x${u} = value_eight(sinks, start, room, first + t + ${u * slots}, lane % ${row});`)}
    ${each(ahead, u => each(vectors(Q), v => `{ let w = weighed[(t + ${u * slots}) * ${vectors(Q)} + ${v}]; ${each(8, k => `e${k}_${v} = fma(w, vec4f(x${u}.${k < 4 ? 'low' : 'high'}[${k % 4}]), e${k}_${v});`, ' ')} }`))}
  }
  ${halving(Q)}
  ${each(dims, i => each(vectors(Q), v => `o${i}_${v} = fma(e${i}_${v}, whole${v}, o${i}_${v} * kept${v});`, ' '))}
  }`,
    dims,
    dimOf: i => `(${[`8 * (lane % ${row})`, ...place, String(i)].join(' + ')})`,
  };
}
