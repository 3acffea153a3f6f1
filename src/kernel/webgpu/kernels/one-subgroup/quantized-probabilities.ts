/**
 * Quantized probabilities: 8 bits, the largest of a page is 255, for integer value codes. Dithered by a fixed pattern
 * along the tokens, so that many small ones keep their sum.
 */

import { float, packRounded, ROUND_MAGIC, sumOfBytes, transpose4x4Bytes } from '../snippets.ts';
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

/** Texts for query `$q`, vec4 `$v`, chunk `$c` and set `$s`. */
interface Sets {
  /** The probabilities of four tokens. */
  weights: string;
  /** Factors of these tokens; up to 255 times the probability. */
  by?: string;
  /** What follows a word, with the `words` of the queries in scope. */
  after?: string;
}

/**
 * Quantized probabilities in workgroup memory, where all lanes find all tokens: `sets` of them, four tokens of a query
 * per word. Where a lane owns every 32nd token it has words of four queries, which are transposed on the way.
 */
export function quantizedProbabilities(P: number, sets = 1) {
  return {
    scratchVectors: (Q: number) => (sets * P * vectors(Q)) / 4,
    declare: (Q: number) => `${roundToBytes}
var<workgroup> token_bytes: array<u32, ${P * vectors(Q)}>;`,
    /** Stores word g with tokens 4 g to 4 g + 3. */
    store: (Q: number, { strided, at }: Tokens, { weights, after = '', by = 'vec4f(255.0)' }: Sets) => {
      const V = vectors(Q);
      const ownTokens = 'vec4f(@list(j, 4, f32(4 * g + $j)))';
      const packWords = strided
        ? `
        @unroll(k, 4) let x$k = token_bytes[(4 * g + $k) * ${V} + $v];
        ${transpose4x4Bytes}
        let words = vec4u(y0, y1, y2, y3);`
        : `let by = ${by}; let words = vec4u${vec4Of(Q, bytesBy(weights, 'by', ownTokens))};`;
      const storeTokens = `
    @unroll(c, ${roundsOf(P)}) {{
      let by = ${by};
      @unroll(q, ${Q}) let w$q = ${weights};
      @unroll(j, 4) if (${at} < ${P}) {
        @unroll(v, ${V}) token_bytes[${at} * ${V} + $v] = ${bytesBy(`vec4f${vec4Of(Q, 'w$q[$j]')}`, 'vec4f(by[$j])', `f32(${at})`)};
      }
    }}
    workgroupBarrier();`;
      return `
    @unroll(s, ${sets}) {
      workgroupBarrier();
      ${strided ? storeTokens : ''}
      @unroll(c, ${roundsOf(P)}) if (lane + $(${LANES} * c) < ${P / 4}) {
        let g = lane + $(${LANES} * c);
        @unroll(v, ${V}) {{ ${packWords} ${SCRATCH}[($(s * ${P / 4}) + g) * ${V} + $v] = words; ${after} }}
      }
    }
    workgroupBarrier();`;
    },
    /** A word of the queries in vec4 `$v`. */
    at: (Q: number, word: string) => `${SCRATCH}[(${word}) * ${vectors(Q)} + $v]`,
  };
}

/** The byte sums of `words`. */
export const sumsOfWords = `vec4f(vec4u(@list(k, 4, ${sumOfBytes('words[$k]')})))`;
