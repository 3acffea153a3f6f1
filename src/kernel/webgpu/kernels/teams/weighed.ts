/**
 * Weights of 8 bits, of which the page's largest is 255, for values that are integers. They are rounded up or down by a
 * fixed pattern along the tokens, so that many small ones keep their sum.
 */

import { GOLDEN } from '../lanes/weighed.ts';
import { each, float, turnAbout } from '../text.ts';
import { tokenAt, vectors } from './attend.ts';
import { TEAMS } from './talk.ts';

/** Weights as bytes in `room`, where the lanes of a team find those of all tokens: four tokens of a query a word. */
export function weighedBytes(P: number) {
  const place = (n: string, Q: number, v: number) =>
    `room[team * ${(P * vectors(Q)) / 4} + (${n}) * ${vectors(Q)} + ${v}]`;
  return {
    room: (Q: number) => (TEAMS * P * vectors(Q)) / 4,
    /** Makes `moreV`: what a lane's add up to. */
    put: (Q: number) => {
      const bytes = (j: number, v: number) => `
    let bytes${j} = vec4u(fma(w${j}_${v}, vec4f(255.0), vec4f(fract(f32(${tokenAt(j)}) * ${float(GOLDEN)}))));
    let x${j} = (bytes${j}.x | (bytes${j}.y << 8u)) | ((bytes${j}.z << 16u) | (bytes${j}.w << 24u));`;
      const fours = (v: number) => `{ ${each(4, j => bytes(j, v))} ${turnAbout}
    more${v} = vec4f(vec4u(${each(4, k => `dot4U8Packed(y${k}, 0x01010101u)`, ', ')}));
    if (lane < ${P / 4}) { ${place('lane', Q, v)} = vec4u(y0, y1, y2, y3); } }`;
      return `${each(vectors(Q), v => `var more${v}: vec4f; ${fours(v)}`)}
  workgroupBarrier();`;
    },
    /** Word n of all queries in vector v. */
    at: (Q: number, n: string, v: number) => place(n, Q, v),
  };
}
