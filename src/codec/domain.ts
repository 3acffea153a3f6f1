/** The domains in which codes live: rotated, centred, with a QJL residual beside them, or mapped head by head. */
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
    query(q, head, start) {
      const { vector, constant } = domain.query(q, head, start);
      const projected = vector.slice();
      qjl.project(projected);
      return { vector: Float64Array.from([...vector, ...projected]), constant };
    },
    back(sum, weightSum, head, start) {
      const residual = sum.slice(d);
      qjl.back(residual);
      return domain.back(
        residual.map((r, i) => r + sum[i]),
        weightSum,
        head,
        start,
      );
    },
  };
}

export interface Maps {
  /** [kv head][dim]. */
  mean?: Float32Array;
  /** [kv head][coded dim][dim]: y = encode (x - mean), and x = decode^T y + mean. */
  encode: Float32Array;
  decode: Float32Array;
  /** They mix dims in blocks of these sizes, in order; all of them unless given. */
  blocks?: readonly number[];
  /** Turn vectors to their page's start first: the angle of each adjacent pair a position. */
  turn?: Float64Array;
}

/** A learned map a head. */
export function mapped(headDim: number, { mean, encode, decode, blocks = [headDim], turn }: Maps): Domain {
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
    plain: false,
    mean,
    matrices: { encode, decode, blocks },
    turn,
    forward(x, head, start) {
      if (turn) turnPairs(x, turn, -start);
      meanOf(head)?.forEach((m, i) => {
        x[i] -= m;
      });
      x.set(apply(encode, head, x));
    },
    query(q, head, start) {
      if (turn) turnPairs(q, turn, -start);
      let constant = 0;
      meanOf(head)?.forEach((m, i) => {
        constant += m * q[i];
      });
      return { vector: apply(decode, head, q), constant };
    },
    back(sum, weightSum, head, start) {
      const x = new Float64Array(headDim);
      meanOf(head)?.forEach((m, i) => {
        x[i] = weightSum * m;
      });
      for (let row = 0; row < headDim; row++) {
        for (let i = 0, at = head * size + row * headDim; i < headDim; i++) x[i] += decode[at + i] * sum[row];
      }
      if (turn) turnPairs(x, turn, start);
      return x;
    },
  };
}

/** Vectors as they are, but turned to their page's start. */
export const pageRelative = (headDim: number, turn: Float64Array): Domain => ({
  codedDim: headDim,
  plain: true,
  turn,
  forward: (x, _head, start) => turnPairs(x, turn, -start),
  query(q, _head, start) {
    turnPairs(q, turn, -start);
    return { vector: q, constant: 0 };
  },
  back(sum, _weightSum, _head, start) {
    const x = sum.slice();
    turnPairs(x, turn, start);
    return x;
  },
});

/** Turns adjacent pairs by `positions` steps, in place; dims past the pairs are left alone. */
export function turnPairs(x: Float64Array, turn: Float64Array, positions: number): void {
  for (let i = 0; i < turn.length; i++) {
    const [cos, sin] = [Math.cos(turn[i] * positions), Math.sin(turn[i] * positions)];
    const [a, b] = [x[2 * i], x[2 * i + 1]];
    x[2 * i] = a * cos - b * sin;
    x[2 * i + 1] = a * sin + b * cos;
  }
}
