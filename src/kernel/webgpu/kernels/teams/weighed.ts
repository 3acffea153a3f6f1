/**
 * Weights of 8 bits, of which the page's largest is 255, for values that are integers. They are rounded up or down by a
 * fixed pattern along the tokens, so that many small ones keep their sum.
 */

import { GOLDEN } from '../ints.ts';
import { each, float, turnAbout } from '../text.ts';
import { type Tokens, vectors } from './attend.ts';
import { TEAMS } from './talk.ts';

/**
 * Weights as bytes in workgroup memory, where the lanes of a team find those of all tokens: four tokens of a query a word.
 * A lane has words of four queries, which four lanes turn about among themselves.
 */
export function weighedBytes(P: number) {
  const place = (n: string, Q: number, v: number) => `weighed[team][(${n}) * ${vectors(Q)} + ${v}]`;
  return {
    loaded: (TEAMS * P) / 4,
    text: (Q: number) => `var<workgroup> weighed: array<array<vec4u, ${(P * vectors(Q)) / 4}>, ${TEAMS}>;
fn turned_about(x: u32) -> u32 {
  let y = across_word(x, 1u);
  let r = select((x & 0x00ff00ffu) | ((y & 0x00ff00ffu) << 8u), ((y >> 8u) & 0x00ff00ffu) | (x & 0xff00ff00u), (lane & 1u) != 0u);
  let z = across_word(r, 2u);
  return select((r & 0xffffu) | (z << 16u), (z >> 16u) | (r & 0xffff0000u), (lane & 2u) != 0u);
}`,
    /** `more` is what they add up to, over all lanes. */
    put: (Q: number, { neighbours, each: J, at }: Tokens) => {
      const bytes = (j: number, v: number) => `
    let bytes${j} = vec4u(fma(w${j}_${v}, vec4f(255.0), vec4f(fract(f32(${at(j)}) * ${float(GOLDEN)}))));
    let x${j} = (bytes${j}.x | (bytes${j}.y << 8u)) | ((bytes${j}.z << 16u) | (bytes${j}.w << 24u));`;
      const ones = '0x01010101u';
      const strided = (v: number) => `{
    var count = 0u;
    ${each(J, j => `{ ${bytes(j, v)} let word = turned_about(x${j}); count += dot4U8Packed(word, ${ones}); ${place(`${8 * j} + lane / 4`, Q, v)}[lane % 4] = word; }`)}
    more${v} = select(vec4f(0.0), vec4f(f32(count)), vec4u(lane % 4) == vec4u(0, 1, 2, 3));
  }`;
      const fours = (v: number) => `{ ${each(J, j => bytes(j, v))} ${turnAbout}
    more${v} = vec4f(vec4u(${each(4, k => `dot4U8Packed(y${k}, ${ones})`, ', ')}));
    if (lane < ${P / 4}) { ${place('lane', Q, v)} = vec4u(y0, y1, y2, y3); } }`;
      return `${each(vectors(Q), neighbours ? fours : strided)}
  workgroupBarrier();`;
    },
    /** Word n of all queries in vector v. */
    at: (Q: number, n: number, v: number) => `weighed[team][${n * vectors(Q) + v}]`,
  };
}
