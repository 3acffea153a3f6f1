/**
 * Weights of 8 bits, of which the page's largest is 255, for values that are integers. They are rounded up or down by a
 * fixed pattern along the tokens, so that many small ones keep their sum.
 */

import { each, float, NEAREST, sumOfFour, turnAbout, wordOfNearest } from '../text.ts';
import { roundsOf, type Tokens, vectorOf, vectors } from './attend.ts';
import { LANES } from './talk.ts';

/** Multiples of it, less their whole parts, are spread evenly: by them weights are rounded along the tokens. */
export const GOLDEN = 0.6180339887498949;

/** Weights of four tokens, or of one for four queries, times `by` as bytes up to 255, by the pattern. */
const bytesBy = (weights: string, by: string, tokens: string) =>
  `nearest_bytes(fma(${weights}, ${by}, vec4f(fract(${tokens} * ${float(GOLDEN)}) - 0.5)))`;

/** Numbers from -0.5 to 255.5 to the nearest bytes. */
const nearestBytes = /* wgsl */ `
fn nearest_bytes(x: vec4f) -> u32 {
  let bits = bitcast<vec4u>(x + ${NEAREST});
  return ${wordOfNearest(['bits.x', 'bits.y', 'bits.z', 'bits.w'], 'u32')};
}`;

/**
 * Weights as bytes in workgroup memory, where lanes find those of all tokens: so many sets of them, four tokens of a query
 * a word. Of every 32nd token a lane has words of four queries, which are turned about on the way.
 */
export function weighedBytes(P: number, sets = 1) {
  const V = vectors;
  const turned = (Q: number, v: number) => `
      ${each(4, k => `let x${k} = tokens[(4 * g + ${k}) * ${V(Q)} + ${v}];`)}
      ${turnAbout}
      let words = vec4u(y0, y1, y2, y3);`;
  return {
    room: (Q: number) => (sets * P * V(Q)) / 4,
    declare: (Q: number) => `${nearestBytes}
var<workgroup> tokens: array<u32, ${P * V(Q)}>;`,
    /**
     * Word g has tokens 4 g to 4 g + 3, weights up to 255 after they are multiplied by `by`; `then` follows, with the `words` of
     * queries 4 v to 4 v + 3 at hand.
     */
    put: (
      Q: number,
      { strided, at }: Tokens,
      weights: (q: number, c: number, s: number) => string,
      then: (v: number, c: number, s: number) => string = () => '',
      by: (c: number, s: number) => string = () => 'vec4f(255.0)',
    ) => {
      const own = (s: number, v: number, c: number) =>
        strided
          ? turned(Q, v)
          : `let by = ${by(c, s)}; let words = vec4u${vectorOf(Q, v, q => bytesBy(weights(q, c, s), 'by', `vec4f(${each(4, j => `f32(4 * g + ${j})`, ', ')})`))};`;
      const given = (s: number, c: number) => `
      let by = ${by(c, s)};
      ${each(Q, q => `let w${q} = ${weights(q, c, s)};`)}
      ${each(4, j => `if (${at(c, j)} < ${P}) { ${each(V(Q), v => `tokens[${at(c, j)} * ${V(Q)} + ${v}] = ${bytesBy(`vec4f${vectorOf(Q, v, q => `w${q}[${j}]`)}`, `vec4f(by[${j}])`, `f32(${at(c, j)})`)};`, ' ')} }`)}`;
      return each(
        sets,
        s => `
    workgroupBarrier();
    ${strided ? `${each(roundsOf(P), c => `{ ${given(s, c)} }`)} workgroupBarrier();` : ''}
    ${each(
      roundsOf(P),
      c => `if (lane + ${LANES * c} < ${P / 4}) {
      let g = lane + ${LANES * c};
      ${each(V(Q), v => `{ ${own(s, v, c)} room[(${(s * P) / 4} + g) * ${V(Q)} + ${v}] = words; ${then(v, c, s)} }`)}
    }`,
    )}
    ${s === sets - 1 ? 'workgroupBarrier();' : ''}`,
      );
    },
    at: (Q: number, word: string, v: number) => `room[(${word}) * ${V(Q)} + ${v}]`,
  };
}

/** The sums of four words' bytes. */
export const sumOfBytes = `vec4f(vec4u(${each(4, k => sumOfFour(`words[${k}]`), ', ')}))`;
