/**
 * Attention probabilities of a query, and the effect of an error in each key or value on the layer's output:
 * calibration weights its samples with them. Keys and values are in blocks, [block][dim][16 tokens]; arrays with one
 * value per token are padded to whole blocks. dims is a multiple of 4.
 */
import { f32, f32x4, type I32, i32, index, type Local, v128 } from '../emit.ts';
import { Kernel, signature } from '../module.ts';
import { horizontalSums } from '../ops.ts';
import { capScores, MASKED, onlineSoftmax, stateBytes } from './online-softmax.ts';

/** Tokens per block. */
export const TOKEN_BLOCK = 16;
/** Bytes of the softmax state, which has no sums. */
export const SOFTMAX_STATE_BYTES = stateBytes(0);

const VECTORS = [0, 1, 2, 3];

/** Calls `body` per block with its dot products with a vector, its byte offset in arrays per token, and its address. */
function forEachBlockDots(
  k: Kernel,
  dims: number,
  tokens: I32,
  count: I32,
  vector: I32,
  body: (dots: Local<'v128'>[], offset: Local<'i32'>, block: Local<'i32'>) => void,
): void {
  const dots = VECTORS.map(() => k.v128());
  const [x, at, block] = [k.v128(), k.i32(tokens), k.i32()];
  const vectorAddress = k.i32(vector);
  k.for(0, i32.mul(count, 4), 4 * TOKEN_BLOCK, offset => {
    k.set(block, at);
    for (const dot of dots) k.set(dot, v128.zero);
    k.for(0, 4 * dims, 16, d => {
      const fourDims = k.i32(i32.add(vectorAddress, d));
      for (const n of VECTORS) {
        k.set(x, v128.load32Splat(fourDims, 4 * n));
        for (const [i, dot] of dots.entries())
          k.set(dot, f32x4.add(dot, f32x4.mul(x, v128.load(at, 4 * TOKEN_BLOCK * n + 16 * i))));
      }
      k.increment(at, 4 * 4 * TOKEN_BLOCK);
    });
    body(dots, offset, block);
  });
}

/**
 * p = softmax (base 2) of the query's dots with `count` keys, of which the first `hidden` are masked; output = the sum of
 * p[n] values[n]. The softmax includes `sinkLogit`. With a softcap, slopes[n] = the derivative of the capped score.
 * `sinkLogit` and `softcap` are the bits of f32.
 */
function attend(dims: number) {
  const inputs = ['query', 'keys', 'values', 'count', 'hidden', 'softcap', 'sinkLogit'] as const;
  const k = new Kernel(signature('attend', ...inputs, 'p', 'slopes', 'output', 'state'));
  const { query, keys, values, count, hidden, softcap, p, slopes, output, state } = k.params;
  const padded = k.i32(i32.and(i32.add(count, TOKEN_BLOCK - 1), -TOKEN_BLOCK));
  forEachBlockDots(k, dims, keys, padded, query, (dots, offset) => {
    const to = k.i32(i32.add(p, offset));
    for (const [i, dot] of dots.entries()) k.do(v128.store(to, dot, 16 * i));
  });
  capScores(k, p, padded, softcap);
  k.if(softcap, () => {
    const inverse = f32.div(f32.const(Math.LN2), f32.fromBits(softcap));
    const inverseMax = k.v128(f32x4.splat(inverse));
    k.for(0, i32.mul(padded, 4), 16, i => {
      const tanh = k.v128(f32x4.mul(inverseMax, v128.load(i32.add(p, i))));
      k.do(v128.store(i32.add(slopes, i), f32x4.sub(f32x4.const(1), f32x4.mul(tanh, tanh))));
    });
  });
  const mask = (n: I32) => k.do(f32.store(index(p, 4, n), f32.const(MASKED)));
  k.for(0, hidden, 1, mask);
  k.for(count, padded, 1, mask);
  k.do(f32.store(state, f32.fromBits(k.params.sinkLogit)), f32.store(state, f32.const(1), 4));
  onlineSoftmax(k, p, padded, state, false);
  const inverse = k.v128(f32x4.splat(f32.div(f32.const(1), f32.load(state, 4))));
  k.for(0, i32.mul(padded, 4), 16, i => {
    const at = k.i32(i32.add(p, i));
    // Squares of smaller values would be subnormal, which is slow.
    k.do(v128.store(at, f32x4.max(f32x4.mul(inverse, v128.load(at)), f32x4.const(2 ** -60))));
  });
  const sums = VECTORS.map(() => k.v128());
  const weight = k.v128();
  k.for(0, 4 * dims, 16, d => {
    for (const sum of sums) k.set(sum, v128.zero);
    const value = k.i32(index(values, TOKEN_BLOCK, d));
    k.for(0, i32.mul(padded, 4), 4 * TOKEN_BLOCK, i => {
      const from = k.i32(i32.add(p, i));
      for (const n of VECTORS) {
        k.set(weight, v128.load(from, 16 * n));
        for (const [dim, sum] of sums.entries())
          k.set(sum, f32x4.add(sum, f32x4.mul(weight, v128.load(value, 4 * TOKEN_BLOCK * dim + 16 * n))));
      }
      k.increment(value, 4 * TOKEN_BLOCK * dims);
    });
    k.do(v128.store(i32.add(output, d), horizontalSums(k, sums, f32x4.add)));
  });
  return k;
}

/** forms[n] += v^T G v of each value v. */
function quadraticForm(dims: number) {
  const k = new Kernel(signature('quadraticForm', 'values', 'count', 'gram', 'forms'));
  const { values, count, gram, forms } = k.params;
  k.for(0, dims, 1, row => {
    forEachBlockDots(k, dims, values, count, index(gram, 4 * dims, row), (dots, offset, block) => {
      const rowValues = k.i32(index(block, 4 * TOKEN_BLOCK, row));
      const to = k.i32(i32.add(forms, offset));
      for (const [i, dot] of dots.entries())
        k.do(v128.store(to, f32x4.add(v128.load(to, 16 * i), f32x4.mul(dot, v128.load(rowValues, 16 * i))), 16 * i));
    });
  });
  return k;
}

/**
 * Replaces each token's p by w = (p slope)^2 |v - output|^2 in the metric of the Gram matrix G. gramOutput is G output,
 * outputForm the bits of output^T G output. keySums += w, valueSums += p^2.
 */
function errorWeights(dims: number) {
  const inputs = ['values', 'count', 'p', 'slopes', 'forms', 'gramOutput', 'outputForm'] as const;
  const k = new Kernel(signature('errorWeights', ...inputs, 'keySums', 'valueSums'));
  const { values, count, p, slopes, forms, gramOutput, keySums, valueSums } = k.params;
  const outputForm = k.v128(f32x4.splat(f32.fromBits(k.params.outputForm)));
  const [square, w] = [k.v128(), k.v128()];
  forEachBlockDots(k, dims, values, count, gramOutput, (dots, offset) => {
    const [pAt, slope, form, keySum, valueSum] = [p, slopes, forms, keySums, valueSums].map(base =>
      k.i32(i32.add(base, offset)),
    );
    dots.forEach((dot, i) => {
      const at = 16 * i;
      k.set(square, f32x4.mul(v128.load(pAt, at), v128.load(pAt, at)));
      const distance = f32x4.sub(f32x4.add(v128.load(form, at), outputForm), f32x4.add(dot, dot));
      const slopeSquare = f32x4.mul(v128.load(slope, at), v128.load(slope, at));
      k.set(w, f32x4.mul(f32x4.mul(square, slopeSquare), f32x4.max(distance, v128.zero)));
      k.do(v128.store(pAt, w, at));
      k.do(v128.store(keySum, f32x4.add(v128.load(keySum, at), w), at));
      k.do(v128.store(valueSum, f32x4.add(v128.load(valueSum, at), square), at));
    });
  });
  return k;
}

/** sum[i][j] += weight x[i] x[j]. `weight` is the bits of an f32. */
function addOuterProduct(dims: number) {
  const k = new Kernel(signature('addOuterProduct', 'sum', 'x', 'weight'));
  const { x } = k.params;
  const to = k.i32(k.params.sum);
  const weight = k.v128(f32x4.splat(f32.fromBits(k.params.weight)));
  const [row, sum] = [k.v128(), k.i32()];
  k.for(0, 4 * dims, 4, i => {
    k.set(row, f32x4.mul(weight, v128.load32Splat(i32.add(x, i))));
    k.for(0, 4 * dims, 16, j => {
      k.set(sum, i32.add(to, j));
      k.do(v128.store(sum, f32x4.add(v128.load(sum), f32x4.mul(row, v128.load(i32.add(x, j))))));
    });
    k.increment(to, 4 * dims);
  });
  return k;
}

export const sensitivityKernels = (dims: number) => ({
  attend: attend(dims),
  quadraticForm: quadraticForm(dims),
  errorWeights: errorWeights(dims),
  addOuterProduct: addOuterProduct(dims),
});
