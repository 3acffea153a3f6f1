/**
 * Quantized probabilities: 8 bits, the largest of a page is 255, for integer value codes. Dithered by a fixed pattern
 * along the tokens, so that many small ones keep their sum.
 */

import { each, float, packRounded, ROUND_MAGIC, sumOfBytes, transpose4x4Bytes } from '../snippets.ts';
import { roundsOf, type Tokens, vec4Of } from './attend.ts';
import { SCRATCH, vectors } from './names.ts';
import { LANES } from './subgroup.ts';

/** Fractional parts of its multiples are spread evenly: the dither of token t is fract(t x this). */
export const GOLDEN_RATIO = 0.6180339887498949;

/** Probabilities of four tokens, or of one token for four queries, times `by`, as dithered bytes. */
const bytesBy = (weights: string, by: string, tokens: string) =>
  `round_to_bytes(fma(${weights}, ${by}, vec4f(fract(${tokens} * ${float(GOLDEN_RATIO)}) - 0.5)))`;

const roundToBytes = /* wgsl */ `
/** Rounds four numbers from -0.5 to 255.5 to the bytes of a word. */
fn round_to_bytes(x: vec4f) -> u32 {
  let bits = bitcast<vec4u>(x + ${ROUND_MAGIC});
  return ${packRounded(['bits.x', 'bits.y', 'bits.z', 'bits.w'], 'u32')};
}`;

/**
 * Quantized probabilities in workgroup memory, where all lanes find all tokens: `sets` of them, four tokens of a query
 * per word. Where a lane owns every 32nd token it has words of four queries, which are transposed on the way.
 */
export function quantizedProbabilities(P: number, sets = 1) {
  const V = vectors;
  const transposed = (Q: number, v: number) => `
      ${each(4, k => `let x${k} = token_bytes[(4 * g + ${k}) * ${V(Q)} + ${v}];`)}
      ${transpose4x4Bytes}
      let words = vec4u(y0, y1, y2, y3);`;
  return {
    scratchVectors: (Q: number) => (sets * P * V(Q)) / 4,
    declare: (Q: number) => `${roundToBytes}
var<workgroup> token_bytes: array<u32, ${P * V(Q)}>;`,
    /**
     * Stores word g with tokens 4 g to 4 g + 3, from probabilities times `by` up to 255; `then` follows, with the
     * `words` of queries 4 v to 4 v + 3 in scope.
     */
    store: (
      Q: number,
      { strided, at }: Tokens,
      weights: (q: number, c: number, s: number) => string,
      then: (v: number, c: number, s: number) => string = () => '',
      by: (c: number, s: number) => string = () => 'vec4f(255.0)',
    ) => {
      const packWords = (s: number, v: number, c: number) =>
        strided
          ? transposed(Q, v)
          : `let by = ${by(c, s)}; let words = vec4u${vec4Of(Q, v, q => bytesBy(weights(q, c, s), 'by', `vec4f(${each(4, j => `f32(4 * g + ${j})`, ', ')})`))};`;
      const storeTokens = (s: number, c: number) => `
      let by = ${by(c, s)};
      ${each(Q, q => `let w${q} = ${weights(q, c, s)};`)}
      ${each(4, j => `if (${at(c, j)} < ${P}) { ${each(V(Q), v => `token_bytes[${at(c, j)} * ${V(Q)} + ${v}] = ${bytesBy(`vec4f${vec4Of(Q, v, q => `w${q}[${j}]`)}`, `vec4f(by[${j}])`, `f32(${at(c, j)})`)};`, ' ')} }`)}`;
      return each(
        sets,
        s => `
    workgroupBarrier();
    ${strided ? `${each(roundsOf(P), c => `{ ${storeTokens(s, c)} }`)} workgroupBarrier();` : ''}
    ${each(
      roundsOf(P),
      c => `if (lane + ${LANES * c} < ${P / 4}) {
      let g = lane + ${LANES * c};
      ${each(V(Q), v => `{ ${packWords(s, v, c)} ${SCRATCH}[(${(s * P) / 4} + g) * ${V(Q)} + ${v}] = words; ${then(v, c, s)} }`)}
    }`,
    )}
    ${s === sets - 1 ? 'workgroupBarrier();' : ''}`,
      );
    },
    at: (Q: number, word: string, v: number) => `${SCRATCH}[(${word}) * ${V(Q)} + ${v}]`,
  };
}

/** The byte sums of `words`. */
export const sumsOfWords = `vec4f(vec4u(${each(4, k => sumOfBytes(`words[${k}]`), ', ')}))`;
