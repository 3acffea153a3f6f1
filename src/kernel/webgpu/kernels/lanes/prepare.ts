/**
 * Queries into a domain that is Hadamard's with signs, or that of the model itself: a workgroup of 32 lanes a query head, which
 * keeps its numbers in registers. The transform pairs dims, and lanes, whose numbers differ in one bit. It runs beside the
 * tails, which do not need it.
 */

import type { Kernel } from '../../gpu.ts';
import { type Domain, domainName, FINISH, int8Words } from '../domain.ts';
import { each, most4 } from '../text.ts';
import { LANES, talk } from './talk.ts';

/** How 32 lanes have `xR` in registers: four dims a lane, and as many 128 further on (R); of less than 128, the first lanes do. */
function layoutOf(D: number) {
  const rounds = Math.ceil(D / 4 / LANES);
  const active = Math.min(LANES, D / 4);
  return {
    rounds,
    active,
    all: (text: (r: number) => string) => each(rounds, text),
    /** Dim i of a lane's four in round r. */
    dims: (r: number, i: number) => `4 * min(lane, ${active - 1}u) + ${4 * LANES * r + i}`,
  };
}

/** Hadamard's transform of such `xR`. Not divided by anything. */
export function hadamard(D: number) {
  const own = layoutOf(D);
  const { rounds, active, all } = own;
  const between = Array.from({ length: Math.log2(rounds) }, (_, k) => 2 ** k).map(by =>
    each(rounds / 2, n => {
      const a = Math.floor(n / by) * 2 * by + (n % by);
      return `{ let a = x${a}; let b = x${a + by}; x${a} = a + b; x${a + by} = a - b; }`;
    }),
  );
  return {
    ...own,
    text: `
  ${all(
    r => `x${r} = vec4f(x${r}.x + x${r}.y, x${r}.x - x${r}.y, x${r}.z + x${r}.w, x${r}.z - x${r}.w);
  x${r} = vec4f(x${r}.xy + x${r}.zw, x${r}.xy - x${r}.zw);`,
  )}
  for (var by = 1u; by < ${active}; by *= 2) {
    ${all(r => `{ let other = across(x${r}, by); x${r} = select(x${r} + other, other - x${r}, (lane & by) != 0); }`)}
  }
  ${between.join('\n')}`,
  };
}

/** Whether lanes can have all dims of a head in this domain. */
export const byLanes = ({ headDim: D, codedDim, matrix, signs }: Domain): boolean =>
  signs || (!matrix && codedDim === D && D % 4 === 0 && (D <= 4 * LANES || D % (4 * LANES) === 0));

/** What `prepare` in ../domain.ts makes: floats, or int8 words with their scale and sum; then the constant. */
export function prepareByLanes(d: Domain, int8: boolean, together: boolean): Kernel {
  const { headDim: D, heads, kvHeads } = d;
  const G = heads / kvHeads;
  const words = int8 ? int8Words(D) : D + 1;
  const { rounds, active, all, dims } = layoutOf(D);
  const integers = `
  let most = largest(vec4f(select(0.0, ${Array.from({ length: rounds }, (_, r) => most4(`abs(x${r})`)).reduce((a, b) => `max(${a}, ${b})`)}, live))).x;
  let unit = select(0.0, 127.0 / most, most > 0);
  var sum = 0;
  ${all(r => `{ let word = pack4xI8(vec4i(round(x${r} * unit))); if (live) { queries[to + lane + ${LANES * r}] = word; sum += dot4I8Packed(word, 0x01010101u); } }`)}
  let count = all_of(vec4f(f32(sum))).x;
  if (lane == 0) { queries[to + ${D / 4}] = bitcast<u32>(most / 127.0); queries[to + ${D / 4 + 1}] = bitcast<u32>(count); }`;
  const floats = `if (live) { ${all(r => each(4, i => `queries[to + ${dims(r, i)}] = bitcast<u32>(x${r}[${i}]);`, ' '))} }`;
  return {
    name: `prepare ${domainName(d)}${int8 ? ' int8' : ''} by lanes${together ? ' together' : ''}`,
    params: ['table', 'rows', 'scale: f32'],
    buffers: [
      'data: array<u32>',
      'q: array<f32>',
      ...(d.signs ? ['signs: array<f32>'] : []),
      ...(d.mean ? ['mean: array<f32>'] : []),
      'write queries: array<u32>',
    ],
    size: LANES,
    enable: together ? ['subgroups'] : [],
    body: /* wgsl */ `
var<private> lane: u32;
${talk(together)}
fn main(group: vec3u, own_lane: u32) {
  lane = own_lane;
  let live = lane < ${active};
  let row = data[p.table + p.rows + ${FINISH} * (group.x / ${G})];
  let head = row * ${heads} + group.y * ${G} + group.x % ${G};
  let at = head * ${D};
  let to = head * ${words};
  ${all(r => `var x${r} = vec4f(${each(4, i => `q[at + ${dims(r, i)}]`, ', ')}) * p.scale;`)}
  ${
    d.mean
      ? `let own_share = ${Array.from({ length: rounds }, (_, r) => `dot(x${r}, vec4f(${each(4, i => `mean[group.y * ${D} + ${dims(r, i)}]`, ', ')}))`).join(' + ')};
  let constant = all_of(vec4f(select(0.0, own_share, live))).x;`
      : 'let constant = 0.0;'
  }
  ${
    d.signs
      ? `${all(r => `x${r} *= vec4f(${each(4, i => `signs[${dims(r, i)}]`, ', ')});`)}
  ${hadamard(D).text}`
      : ''
  }
  ${int8 ? integers : floats}
  if (lane == 0) { queries[to + ${words - 1}] = bitcast<u32>(constant); }
}`,
  };
}
