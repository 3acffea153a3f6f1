/**
 * The end of attention where values are in a domain that is Hadamard's with signs: a workgroup a row and query head. Teams
 * take states in turn, a lane four dims of each; every team then has their sum, and takes it back by itself.
 */

import type { Kernel } from '../../gpu.ts';
import { int8Buffers, toInt8 } from '../activations.ts';
import { type Domain, domainName, FINISH, stateFloats } from '../domain.ts';
import { hadamard } from '../lanes/prepare.ts';
import { LANES } from '../lanes/talk.ts';
import { each } from '../text.ts';
import { SIZE, TEAMS, talk } from './talk.ts';

/** States that a team asks for at once: of pages there are many, of f16 tokens a few. */
const AHEAD = { page: 8, half: 1 };
type Kind = keyof typeof AHEAD;

/** What `finish` in ../domain.ts makes with a matrix: merges the states of pages, takes them back, adds those of f16 tokens. */
export function finishRotated(d: Domain, int8: boolean, together: boolean): Kernel {
  const { headDim: D, heads, kvHeads } = d;
  const rotation = hadamard(D);
  const { rounds, active, all, dims } = rotation;
  const stateOf = (first: string, u: string) => `((${first} + ${u}) * ${heads} + head) * ${stateFloats(D) / 4}`;
  const most = (states: string, first: string, count: string) => `
  for (var u = own; u < ${count}; u += ${SIZE}) { m = max(m, ${states}[${stateOf(first, 'u')} + ${D / 4}].x); }`;
  const nth = (k: number) => `u + ${k * TEAMS}`;
  /** Asks for a team's next states: of each its numbers `stateK`, and `oK_R`. */
  const ask = (id: Kind, states: string, first: string, count: string) =>
    each(
      AHEAD[id],
      k =>
        `{ let at = ${stateOf(first, `min(${nth(k)}, max(${count}, 1u) - 1)`)}; ${id}_state${k} = ${states}[at + ${D / 4}]; ${all(r => `${id}_o${k}_${r} = ${states}[at + min(lane, ${active - 1}u) + ${r * LANES}];`)} }`,
    );
  const asked = (id: Kind) =>
    each(AHEAD[id], k => `var ${id}_state${k}: vec4f; ${all(r => `var ${id}_o${k}_${r}: vec4f;`)}`);
  /** Adds all states to `toR`, and their lengths to l. The first were asked for before anything else. */
  const merge = (id: Kind, states: string, first: string, count: string, to: string) => `
  {
    ${all(r => `var sum${r} = vec4f(0.0);`)}
    var length = 0.0;
    for (var u = team; u < ${count}; u += ${TEAMS * AHEAD[id]}) {
      if (u != team) { ${ask(id, states, first, count)} }
      ${each(AHEAD[id], k => `{ let weight = select(0.0, exp(${id}_state${k}.x - m), ${nth(k)} < ${count}); length = fma(weight, ${id}_state${k}.y, length); ${all(r => `sum${r} = fma(vec4f(weight), ${id}_o${k}_${r}, sum${r});`)} }`)}
    }
    workgroupBarrier();
    ${all(r => `sums[team][lane + ${r * LANES}] = sum${r};`)}
    if (lane == 0) { numbers[team] = length; }
    workgroupBarrier();
    ${all(r => `${to}${r} += ${sumOf(TEAMS, t => `sums[${t}][lane + ${r * LANES}]`)};`)}
    l += ${sumOf(TEAMS, t => `numbers[${t}]`)};
  }`;
  return {
    name: `finish ${domainName(d)}${int8 ? ' int8' : ''} by teams${together ? ' together' : ''}`,
    params: ['table', 'rows'],
    buffers: [
      'data: array<u32>',
      'states: array<vec4f>',
      'halves: array<vec4f>',
      'signs: array<f32>',
      ...(d.mean ? ['mean: array<f32>'] : []),
      'write out: array<f32>',
      ...(int8 ? int8Buffers : []),
    ],
    size: SIZE,
    enable: together ? ['subgroups'] : [],
    body: /* wgsl */ `
${talk(together)}
${int8 ? toInt8(SIZE) : ''}
var<workgroup> sums: array<array<vec4f, ${rounds * LANES}>, ${TEAMS}>;
var<workgroup> numbers: array<f32, ${TEAMS}>;
fn main(group: vec3u, own: u32) {
  lane = own % ${LANES};
  team = own / ${LANES};
  let at = p.table + p.rows + ${FINISH} * group.y;
  let head = group.x;
  let start = (data[at] * ${heads} + head) * ${D};
  let live = lane < ${active};
  ${asked('page')} ${asked('half')}
  {
    let u = team;
    ${ask('page', 'states', 'data[at + 1]', 'data[at + 2]')}
    ${ask('half', 'halves', 'data[at + 3]', 'data[at + 4]')}
  }
  ${all(r => `let signs${r} = vec4f(${each(4, i => `signs[${dims(r, i)}]`, ', ')});`)}
  var m = -3e38;
  ${most('states', 'data[at + 1]', 'data[at + 2]')}
  ${most('halves', 'data[at + 3]', 'data[at + 4]')}
  m = largest(vec4f(m)).x;
  if (lane == 0) { numbers[team] = m; }
  workgroupBarrier();
  m = ${Array.from({ length: TEAMS }, (_, t) => `numbers[${t}]`).reduce((a, b) => `max(${a}, ${b})`)};
  var l = 0.0;
  ${all(r => `var x${r} = vec4f(0.0);`)}
  ${merge('page', 'states', 'data[at + 1]', 'data[at + 2]', 'x')}
  ${rotation.text}
  ${all(r => `x${r} *= signs${r};`)}
  ${d.mean ? all(r => `x${r} = fma(vec4f(l), vec4f(${each(4, i => `mean[head / ${heads / kvHeads} * ${D} + ${dims(r, i)}]`, ', ')}), x${r});`) : ''}
  ${merge('half', 'halves', 'data[at + 3]', 'data[at + 4]', 'x')}
  ${all(r => `x${r} /= l; if (team == 0 && live) { ${each(4, i => `out[start + ${dims(r, i)}] = x${r}[${i}];`, ' ')} }`)}
  ${int8 ? all(r => `to_int8(x${r}, start / 4 + lane + ${r * LANES}, own, own < ${active});`) : ''}
}`,
  };
}

/** A sum of a few, two and two. */
const sumOf = (count: number, text: (n: number) => string): string =>
  count === 1 ? text(0) : `(${sumOf(count / 2, n => text(n))} + ${sumOf(count / 2, n => text(count / 2 + n))})`;
