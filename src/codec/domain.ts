/** The domains of the codecs: rotated, with a QJL residual, or transformed by a mean and a matrix per head. */

import type { Domain } from './page-codec.ts';
import type { Qjl } from './parts/qjl.ts';
import { applyRope } from './parts/rope.ts';
import { identity, type Transform, toMatrix } from './parts/rotation.ts';

/** y = R x. */
export const rotatedDomain = (headDim: number, rotation: Transform): Domain => ({
  codedDim: headDim,
  isIdentity: rotation === identity,
  forward: x => rotation.forward(x),
  transformQuery(q) {
    rotation.forward(q);
    return { vector: q, constant: 0 };
  },
  inverse(sum) {
    const x = sum.slice(0, headDim);
    rotation.inverse(x);
    return x;
  },
});

export const identityDomain = (headDim: number): Domain => rotatedDomain(headDim, identity);

/** A coded vector is [y, z]: y in `domain`, z in the QJL domain of the residual. Its value is y + S^T z. */
export function withQjlResidual(domain: Domain, qjl: Qjl): Domain {
  const d = domain.codedDim;
  const transformQuery: Domain['transformQuery'] = (q, head, start) => {
    const { vector, constant } = domain.transformQuery(q, head, start);
    const projected = vector.slice();
    qjl.project(projected);
    return { vector: Float64Array.from([...vector, ...projected]), constant };
  };
  const appendResidual = ({ encode, blocks }: NonNullable<Domain['matrices']>) => {
    // The residual is known after quantization only, so vectors have rows of zeros for it.
    const [queryRows, vectorRows] = [new Float32Array(2 * encode.length), new Float32Array(2 * encode.length)];
    for (let head = 0, at = 0; at < encode.length; head++, at += d * d) {
      queryRows.set(
        toMatrix(q => transformQuery(q, head, 0).vector, d, 2 * d),
        2 * at,
      );
      vectorRows.set(encode.subarray(at, at + d * d), 2 * at);
    }
    return { decode: queryRows, encode: vectorRows, blocks };
  };
  return {
    codedDim: 2 * d,
    isIdentity: false,
    mean: domain.mean,
    matrices: domain.matrices && appendResidual(domain.matrices),
    forward: domain.forward,
    transformQuery,
    inverse(sum, weightSum, head, start) {
      const residual = sum.slice(d);
      qjl.projectBack(residual);
      return domain.inverse(
        residual.map((r, i) => r + sum[i]),
        weightSum,
        head,
        start,
      );
    },
  };
}

export interface LinearMaps {
  /** [kv head][dim]. */
  mean?: Float32Array;
  /** [kv head][coded dim][dim]: y = encode (x - mean), x = decode^T y + mean. */
  encode: Float32Array;
  decode: Float32Array;
  /** The matrices are block diagonal, with blocks of these sizes. Default: one block. */
  diagonalBlocks?: readonly number[];
  /** If set, vectors are made page-relative first. */
  ropeFrequencies?: Float64Array;
}

/** One learned matrix per head. */
export function linearMapDomain(
  headDim: number,
  { mean, encode, decode, diagonalBlocks = [headDim], ropeFrequencies }: LinearMaps,
): Domain {
  const size = headDim * headDim;
  const apply = (matrix: Float32Array, head: number, x: Float64Array) => {
    const y = new Float64Array(headDim);
    for (let row = 0, at = head * size; row < headDim; row++) {
      for (let i = 0; i < headDim; i++, at++) y[row] += matrix[at] * x[i];
    }
    return y;
  };
  const meanOf = (head: number) => mean?.subarray(head * headDim, (head + 1) * headDim);
  return {
    codedDim: headDim,
    isIdentity: false,
    mean,
    matrices: { encode, decode, blocks: diagonalBlocks },
    ropeFrequencies,
    forward(x, head, start) {
      if (ropeFrequencies) applyRope(x, ropeFrequencies, -start);
      meanOf(head)?.forEach((m, i) => {
        x[i] -= m;
      });
      x.set(apply(encode, head, x));
    },
    transformQuery(q, head, start) {
      if (ropeFrequencies) applyRope(q, ropeFrequencies, -start);
      let constant = 0;
      meanOf(head)?.forEach((m, i) => {
        constant += m * q[i];
      });
      return { vector: apply(decode, head, q), constant };
    },
    inverse(sum, weightSum, head, start) {
      const x = new Float64Array(headDim);
      meanOf(head)?.forEach((m, i) => {
        x[i] = weightSum * m;
      });
      for (let row = 0; row < headDim; row++) {
        for (let i = 0, at = head * size + row * headDim; i < headDim; i++) x[i] += decode[at + i] * sum[row];
      }
      if (ropeFrequencies) applyRope(x, ropeFrequencies, start);
      return x;
    },
  };
}

/** No transform except for making vectors page-relative: RoPE is undone up to the page's position. */
export const pageRelativeDomain = (headDim: number, ropeFrequencies: Float64Array): Domain => ({
  codedDim: headDim,
  isIdentity: true,
  ropeFrequencies,
  forward: (x, _head, start) => applyRope(x, ropeFrequencies, -start),
  transformQuery(q, _head, start) {
    applyRope(q, ropeFrequencies, -start);
    return { vector: q, constant: 0 };
  },
  inverse(sum, _weightSum, _head, start) {
    const x = sum.slice();
    applyRope(x, ropeFrequencies, start);
    return x;
  },
});
