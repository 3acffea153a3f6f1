/** The domains of the data-free codecs: rotated, centred, and with a QJL residual beside them. */
import type { Domain } from './page-codec.ts';
import type { Qjl } from './parts/qjl.ts';
import { identity, type Transform } from './parts/rotation.ts';

/** y = R (x - mean); the mean is [kv head][dim]. */
export function rotated(headDim: number, rotation: Transform, mean?: Float32Array): Domain {
  const meanOf = (head: number) => mean?.subarray(head * headDim, (head + 1) * headDim);
  return {
    codedDim: headDim,
    plain: rotation === identity && mean === undefined,
    mean,
    forward(x, head) {
      meanOf(head)?.forEach((m, i) => {
        x[i] -= m;
      });
      rotation.forward(x);
    },
    query(q, head) {
      let constant = 0;
      meanOf(head)?.forEach((m, i) => {
        constant += m * q[i];
      });
      rotation.forward(q);
      return { vector: q, constant };
    },
    back(sum, weightSum, head) {
      const x = sum.slice(0, headDim);
      rotation.inverse(x);
      meanOf(head)?.forEach((m, i) => {
        x[i] += weightSum * m;
      });
      return x;
    },
  };
}

export const plain = (headDim: number): Domain => rotated(headDim, identity);

/** A coded vector is [y, z]: y in the domain below, z in the QJL domain of its residual; it stands for y + S^T z. */
export function withResidual(domain: Domain, qjl: Qjl): Domain {
  const d = domain.codedDim;
  return {
    codedDim: 2 * d,
    plain: false,
    mean: domain.mean,
    forward: domain.forward,
    query(q, head) {
      const { vector, constant } = domain.query(q, head);
      const projected = vector.slice();
      qjl.project(projected);
      return { vector: Float64Array.from([...vector, ...projected]), constant };
    },
    back(sum, weightSum, head) {
      const residual = sum.slice(d);
      qjl.back(residual);
      return domain.back(
        residual.map((r, i) => r + sum[i]),
        weightSum,
        head,
      );
    },
  };
}
