/**
 * Quantized probabilities: 8 bits, the largest of a page is 255, for integer value codes. Dithered by a fixed pattern
 * along the tokens, so that many small ones keep their sum.
 */

import { GOLDEN_RATIO } from '../one-subgroup/quantized-probabilities.ts';
import { float, transpose4x4Bytes } from '../snippets.ts';
import { SCRATCH, vectors } from './names.ts';
import { SUBGROUPS } from './subgroup.ts';

/**
 * Quantized probabilities in SCRATCH, where all lanes of a subgroup find all tokens: four tokens of a query per word.
 */
export function quantizedProbabilities(P: number) {
  /** Word n of the queries in vec4 `$v`. */
  const at = (Q: number, n: string) => `${SCRATCH}[subgroup * ${(P * vectors(Q)) / 4} + (${n}) * ${vectors(Q)} + $v]`;
  return {
    scratchVectors: (Q: number) => (SUBGROUPS * P * vectors(Q)) / 4,
    /** Stores them, and declares `prob_sumV`. */
    store: (Q: number) => `
  @unroll(v, ${vectors(Q)}) {
    var prob_sum$v: vec4f;
    {
      @unroll(j, 4) {
        let bytes$j = vec4u(fma(prob$j_$v, vec4f(255.0), vec4f(fract(f32((4 * lane + $j)) * ${float(GOLDEN_RATIO)}))));
        let x$j = (bytes$j.x | (bytes$j.y << 8u)) | ((bytes$j.z << 16u) | (bytes$j.w << 24u));
      }
      ${transpose4x4Bytes}
      prob_sum$v = vec4f(vec4u(@list(k, 4, dot4U8Packed(y$k, 0x01010101u))));
      if (lane < ${P / 4}) { ${at(Q, 'lane')} = vec4u(y0, y1, y2, y3); }
    }
  }
  workgroupBarrier();`,
    at,
  };
}
