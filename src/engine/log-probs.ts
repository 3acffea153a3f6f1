/**
 * Log softmax over the vocabulary, and the KL divergence of two such rows, in WebAssembly: in plain JavaScript they would
 * take a tenth of an evaluation's time. Sums are f32 within runs of tokens, and f64 over the runs.
 */
import { f32, f32x4, type I32, i32, type V128, v128 } from '../kernel/wasm/emit.ts';
import { Kernel, moduleBytes } from '../kernel/wasm/module.ts';
import { exp, reduceAdd, reduceMax } from '../kernel/wasm/ops.ts';

/** Tokens per run. */
const RUN = 64;
const PAGE = 65536;

/** max(x, bytes, out). */
function maxValue(): Kernel {
  const k = new Kernel('max', Array(3).fill('i32'));
  const [x, bytes, out] = k.params.map((_, i) => k.i32Param(i));
  const max = k.v128(v128.load(x));
  k.for(0, bytes, 16, i => k.set(max, f32x4.max(max, v128.load(i32.add(x, i)))));
  k.do(f32.store(out, reduceMax(k, max)));
  return k;
}

/** A kernel that sums `term` over each run: out[run]. */
function sumRuns(name: string, params: number, term: (k: Kernel, i: I32) => V128): Kernel {
  const k = new Kernel(name, Array(params).fill('i32'));
  const [bytes, out] = [k.i32Param(params - 2), k.i32Param(params - 1)];
  const sum = k.v128();
  const to = k.i32(out);
  k.for(0, bytes, 4 * RUN, run => {
    k.set(sum, v128.zero);
    k.for(run, i32.add(run, 4 * RUN), 16, i => k.set(sum, f32x4.add(sum, term(k, i))));
    k.do(f32.store(to, reduceAdd(k, sum)));
    k.increment(to, 4);
  });
  return k;
}

/** exponentials(x, bits of the f32 to subtract, bytes, out). */
const exponentials = () =>
  sumRuns('exponentials', 4, (k, i) =>
    exp(k, f32x4.sub(v128.load(i32.add(k.i32Param(0), i)), f32x4.splat(f32.fromBits(k.i32Param(1))))),
  );

/** divergences(logProbs, reference, bytes, out): sums of e^reference (reference - logProbs). */
const divergences = () =>
  sumRuns('divergences', 4, (k, i) => {
    const reference = k.v128(v128.load(i32.add(k.i32Param(1), i)));
    return f32x4.mul(exp(k, reference), f32x4.sub(reference, v128.load(i32.add(k.i32Param(0), i))));
  });

type Kernels = Record<'max' | 'exponentials' | 'divergences', (...args: number[]) => void>;

let memory: WebAssembly.Memory | undefined;
let kernels: Kernels | undefined;

/** Memory for two rows of at least `length` floats, followed by one result per run. */
function openBuffers(length: number) {
  const padded = Math.ceil(length / RUN) * RUN;
  const bytes = 4 * padded;
  if (!memory || !kernels) {
    memory = new WebAssembly.Memory({ initial: 1, maximum: PAGE });
    const module = new WebAssembly.Module(
      moduleBytes([maxValue(), exponentials(), divergences()], { maxPages: PAGE, shared: false }),
    );
    kernels = new WebAssembly.Instance(module, { env: { memory } }).exports as Kernels;
  }
  const missing = Math.ceil((3 * bytes) / PAGE) - memory.buffer.byteLength / PAGE;
  if (missing > 0) memory.grow(missing);
  const floats = new Float32Array(memory.buffer, 0, 3 * padded);
  const results = floats.subarray(2 * padded);
  return {
    kernels,
    bytes,
    offsets: [0, bytes, 2 * bytes] as const,
    results,
    /** The padding has a probability of 0. */
    setRow(row: 0 | 1, data: Float32Array) {
      floats.set(data, row * padded);
      floats.fill(-1e30, row * padded + length, (row + 1) * padded);
    },
    total: () => results.subarray(0, padded / RUN).reduce((sum, x) => sum + x, 0),
  };
}

const word = new DataView(new ArrayBuffer(4));
function bitsOf(x: number): number {
  word.setFloat32(0, x);
  return word.getInt32(0);
}

/** In place. */
export function logSoftmax(logits: Float32Array): Float32Array {
  const { kernels, bytes, offsets, results, setRow, total } = openBuffers(logits.length);
  setRow(0, logits);
  kernels.max(offsets[0], bytes, offsets[2]);
  const [max] = results;
  kernels.exponentials(offsets[0], bitsOf(max), bytes, offsets[2]);
  const norm = max + Math.log(total());
  for (let i = 0; i < logits.length; i++) logits[i] -= norm;
  return logits;
}

/** The KL divergence from a reference, in nats, and whether both have the same most likely token. */
export function compareLogProbs(logProbs: Float32Array, reference: Float32Array): { kld: number; same: boolean } {
  const { kernels, bytes, offsets, results, setRow, total } = openBuffers(reference.length);
  setRow(0, logProbs);
  setRow(1, reference);
  const [top, referenceTop] = [logProbs, reference].map((row, i) => {
    kernels.max(offsets[i], bytes, offsets[2]);
    return row.indexOf(results[0]);
  });
  kernels.divergences(offsets[0], offsets[1], bytes, offsets[2]);
  return { kld: total(), same: top === referenceTop };
}
