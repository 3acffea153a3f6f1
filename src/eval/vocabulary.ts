/**
 * Log-probabilities of whole vocabularies, and the divergence of two such rows: a few exponentials for every token of
 * every row that is judged, which plain JavaScript would take a tenth of an evaluation's time for. Sums run over runs of
 * tokens in f32, and over the runs in f64.
 */
import { f32, f32x4, type I32, i32, type V128, v128 } from '../kernel/wasm/emit.ts';
import { Kernel, moduleBytes } from '../kernel/wasm/module.ts';
import { exp4, max4, sum4 } from '../kernel/wasm/ops.ts';

/** Tokens of a run. */
const RUN = 64;
const PAGE = 65536;

/** largest(x, bytes, out). */
function largest(): Kernel {
  const k = new Kernel('largest', Array(3).fill('i32'));
  const [x, bytes, out] = k.params.map((_, i) => k.i32Param(i));
  const most = k.v128(v128.load(x));
  k.for(0, bytes, 16, i => k.set(most, f32x4.max(most, v128.load(i32.add(x, i)))));
  k.do(f32.store(out, max4(k, most)));
  return k;
}

/** A kernel that sums `term` over every run: out[run]. */
function sumRuns(name: string, params: number, term: (k: Kernel, i: I32) => V128): Kernel {
  const k = new Kernel(name, Array(params).fill('i32'));
  const [bytes, out] = [k.i32Param(params - 2), k.i32Param(params - 1)];
  const sum = k.v128();
  const to = k.i32(out);
  k.for(0, bytes, 4 * RUN, run => {
    k.set(sum, v128.zero);
    k.for(run, i32.add(run, 4 * RUN), 16, i => k.set(sum, f32x4.add(sum, term(k, i))));
    k.do(f32.store(to, sum4(k, sum)));
    k.increment(to, 4);
  });
  return k;
}

/** exponentials(x, bits of what to take off, bytes, out). */
const exponentials = () =>
  sumRuns('exponentials', 4, (k, i) =>
    exp4(k, f32x4.sub(v128.load(i32.add(k.i32Param(0), i)), f32x4.splat(f32.fromBits(k.i32Param(1))))),
  );

/** divergences(own, reference, bytes, out): of probabilities e^reference. */
const divergences = () =>
  sumRuns('divergences', 4, (k, i) => {
    const theirs = k.v128(v128.load(i32.add(k.i32Param(1), i)));
    return f32x4.mul(exp4(k, theirs), f32x4.sub(theirs, v128.load(i32.add(k.i32Param(0), i))));
  });

type Kernels = Record<'largest' | 'exponentials' | 'divergences', (...args: number[]) => void>;

let memory: WebAssembly.Memory | undefined;
let kernels: Kernels | undefined;

/** Two rows of at least `length` floats, and room for a number a run behind them. */
function open(length: number) {
  const padded = Math.ceil(length / RUN) * RUN;
  const bytes = 4 * padded;
  if (!memory || !kernels) {
    memory = new WebAssembly.Memory({ initial: 1, maximum: PAGE });
    const module = new WebAssembly.Module(
      moduleBytes([largest(), exponentials(), divergences()], { maxPages: PAGE, shared: false }),
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
    at: [0, bytes, 2 * bytes] as const,
    results,
    /** What fills it up is as good as impossible. */
    put(row: 0 | 1, data: Float32Array) {
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

/** In place: rows of a vocabulary are many and long. */
export function logSoftmax(logits: Float32Array): Float32Array {
  const { kernels, bytes, at, results, put, total } = open(logits.length);
  put(0, logits);
  kernels.largest(at[0], bytes, at[2]);
  const [max] = results;
  kernels.exponentials(at[0], bitsOf(max), bytes, at[2]);
  const norm = max + Math.log(total());
  for (let i = 0; i < logits.length; i++) logits[i] -= norm;
  return logits;
}

/** The divergence of log-probabilities from a reference's, in nats, and whether both have the same token on top. */
export function compare(logProbs: Float32Array, reference: Float32Array): { kld: number; same: boolean } {
  const { kernels, bytes, at, results, put, total } = open(reference.length);
  put(0, logProbs);
  put(1, reference);
  const [best, wanted] = [logProbs, reference].map((row, i) => {
    kernels.largest(at[i], bytes, at[2]);
    return row.indexOf(results[0]);
  });
  kernels.divergences(at[0], at[1], bytes, at[2]);
  return { kld: total(), same: best === wanted };
}
