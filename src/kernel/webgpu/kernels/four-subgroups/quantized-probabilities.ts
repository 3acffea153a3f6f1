/**
 * Quantized probabilities: 8 bits, the largest of a page is 255, for integer value codes. Dithered by a fixed pattern
 * along the tokens, so that many small ones keep their sum.
 */

import { GOLDEN_RATIO } from '../one-subgroup/quantized-probabilities.ts';
import { each, float, transpose4x4Bytes } from '../snippets.ts';
import { tokenAt } from './attend.ts';
import { probabilities, probabilitySum, SCRATCH, vectors } from './names.ts';
import { SUBGROUPS } from './subgroup.ts';

/**
 * Quantized probabilities in SCRATCH, where all lanes of a subgroup find all tokens: four tokens of a query per word.
 */
export function quantizedProbabilities(P: number) {
  const place = (n: string, Q: number, v: number) =>
    `${SCRATCH}[subgroup * ${(P * vectors(Q)) / 4} + (${n}) * ${vectors(Q)} + ${v}]`;
  return {
    scratchVectors: (Q: number) => (SUBGROUPS * P * vectors(Q)) / 4,
    /** Stores them, and declares `probabilitySum(v)`. */
    store: (Q: number) => {
      const bytes = (j: number, v: number) => `
    let bytes${j} = vec4u(fma(${probabilities(j, v)}, vec4f(255.0), vec4f(fract(f32(${tokenAt(j)}) * ${float(GOLDEN_RATIO)}))));
    let x${j} = (bytes${j}.x | (bytes${j}.y << 8u)) | ((bytes${j}.z << 16u) | (bytes${j}.w << 24u));`;
      const fours = (v: number) => `{ ${each(4, j => bytes(j, v))} ${transpose4x4Bytes}
    ${probabilitySum(v)} = vec4f(vec4u(${each(4, k => `dot4U8Packed(y${k}, 0x01010101u)`, ', ')}));
    if (lane < ${P / 4}) { ${place('lane', Q, v)} = vec4u(y0, y1, y2, y3); } }`;
      return `${each(vectors(Q), v => `var ${probabilitySum(v)}: vec4f; ${fours(v)}`)}
  workgroupBarrier();`;
    },
    /** Word n of the queries in vec4 v. */
    at: (Q: number, n: string, v: number) => place(n, Q, v),
  };
}
