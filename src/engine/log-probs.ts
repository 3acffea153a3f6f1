/**
 * Log softmax over the vocabulary, and the KL divergence of two such rows, in WebAssembly: in plain JavaScript they would
 * take a tenth of an evaluation's time. Sums are f32 within runs of tokens, and f64 over the runs.
 */
import { floatBits } from '../kernel/float.ts';
import { f32, f32x4, type I32, i32, type V128, v128 } from '../kernel/wasm/emit.ts';
import { instantiate, Kernel, PAGE_BYTES, signature } from '../kernel/wasm/module.ts';
import { exp, reduceAdd, reduceMax } from '../kernel/wasm/ops.ts';

/** Tokens per run. */
const RUN = 64;
const MAX_BYTES = 2 ** 32;

/** The largest of the values in `bytes`. */
function maxValue() {
  const k = new Kernel(signature('max', 'x', 'bytes', 'out'));
  const { x, bytes, out } = k.params;
  const max = k.v128(v128.load(x));
  k.for(0, bytes, 16, i => k.set(max, f32x4.max(max, v128.load(i32.add(x, i)))));
  k.do(f32.store(out, reduceMax(k, max)));
  return k;
}

/** Sums `term` over each run: out[run]. */
function sumRuns<P extends string>(k: Kernel<P | 'bytes' | 'out'>, term: (i: I32) => V128) {
  const { bytes, out } = k.params;
  const sum = k.v128();
  const to = k.i32(out);
  k.for(0, bytes, 4 * RUN, run => {
    k.set(sum, v128.zero);
    k.for(run, i32.add(run, 4 * RUN), 16, i => k.set(sum, f32x4.add(sum, term(i))));
    k.do(f32.store(to, reduceAdd(k, sum)));
    k.increment(to, 4);
  });
  return k;
}

/** Sums of e^(x - max). `max` is the bits of an f32. */
function exponentials() {
  const k = new Kernel(signature('exponentials', 'x', 'max', 'bytes', 'out'));
  const { x, max } = k.params;
  return sumRuns(k, i => exp(k, f32x4.sub(v128.load(i32.add(x, i)), f32x4.splat(f32.fromBits(max)))));
}

/** Sums of e^reference (reference - logProbs). */
function divergences() {
  const k = new Kernel(signature('divergences', 'logProbs', 'reference', 'bytes', 'out'));
  const { logProbs, reference } = k.params;
  return sumRuns(k, i => {
    const four = k.v128(v128.load(i32.add(reference, i)));
    return f32x4.mul(exp(k, four), f32x4.sub(four, v128.load(i32.add(logProbs, i))));
  });
}

const compile = () =>
  instantiate({ max: maxValue(), exponentials: exponentials(), divergences: divergences() }, PAGE_BYTES, MAX_BYTES);
let compiled: ReturnType<typeof compile> | undefined;

/** Memory for two rows of at least `length` floats, followed by one result per run. */
function openBuffers(length: number) {
  const padded = Math.ceil(length / RUN) * RUN;
  const bytes = 4 * padded;
  compiled ??= compile();
  const { memory, calls } = compiled;
  const missing = Math.ceil((3 * bytes - memory.buffer.byteLength) / PAGE_BYTES);
  if (missing > 0) memory.grow(missing);
  const floats = new Float32Array(memory.buffer, 0, 3 * padded);
  const results = floats.subarray(2 * padded);
  return {
    calls,
    bytes,
    offsets: [0, bytes] as const,
    out: 2 * bytes,
    results,
    /** The padding has a probability of 0. */
    setRow(row: 0 | 1, data: Float32Array) {
      floats.set(data, row * padded);
      floats.fill(-1e30, row * padded + length, (row + 1) * padded);
    },
    total: () => results.subarray(0, padded / RUN).reduce((sum, x) => sum + x, 0),
  };
}

/** In place. */
export function logSoftmax(logits: Float32Array): Float32Array {
  const { calls, bytes, offsets, out, results, setRow, total } = openBuffers(logits.length);
  setRow(0, logits);
  calls.max({ x: offsets[0], bytes, out });
  const [max] = results;
  calls.exponentials({ x: offsets[0], max: floatBits(max), bytes, out });
  const norm = max + Math.log(total());
  for (let i = 0; i < logits.length; i++) logits[i] -= norm;
  return logits;
}

/** The KL divergence from a reference, in nats, and whether both have the same most likely token. */
export function compareLogProbs(logProbs: Float32Array, reference: Float32Array): { kld: number; same: boolean } {
  const { calls, bytes, offsets, out, results, setRow, total } = openBuffers(reference.length);
  setRow(0, logProbs);
  setRow(1, reference);
  const [top, referenceTop] = [logProbs, reference].map((row, i) => {
    calls.max({ x: offsets[i], bytes, out });
    return row.indexOf(results[0]);
  });
  calls.divergences({ logProbs: offsets[0], reference: offsets[1], bytes, out });
  return { kld: total(), same: top === referenceTop };
}
