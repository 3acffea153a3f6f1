/** Attention of a device on random data, in any chunks: how the device tests compare devices. */

import { expect } from 'vitest';
import { createSequence } from '../../src/cache/create-sequence.ts';
import { leafLayout } from '../../src/cache/leaf.ts';
import type { Sequence } from '../../src/cache/sequence.ts';
import { createCodec, type KvCodec, type KvShape } from '../../src/codec/kv.ts';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { norm } from '../../src/codec/parts/vector.ts';
import type { Device, Tensor } from '../../src/kernel/device.ts';
import { firstVisible } from '../../src/kernel/visibility.ts';
import { createTrained } from './codec-suite.ts';

/** Codecs outside the zoo that take code paths of their own on a device. */
export const CODEC_VARIANTS = [
  'tq4-haar',
  'tq4-n32',
  'tq4-raw',
  'kivi2g32-token/kivi2g32-channel',
  'oscar2g32-xh',
  'kivi8g32',
  'kivi1g32',
];

/** A hybrid whose finer half differs between heads, and whose halves have scales of their own. */
export function unequalHalvesCodec(spec: string, shape: KvShape & { kvHeads: number }): KvCodec {
  const length = shape.kvHeads * shape.headDim;
  const [key, value] = [3, 5].map(seed => ({ variance: normals(createRandom(seed), length).map(x => x ** 4) }));
  return createCodec(spec, shape, { key, value });
}

/** |a - b| / |b|. */
export const relativeError = (a: Float32Array, b: Float32Array): number =>
  norm(a.map((x, i) => x - b[i])) / (norm(b) || 1);

export interface AttentionCase {
  spec: string;
  headDim?: number;
  heads?: number;
  kvHeads?: number;
  pageTokens?: number;
  /** Replaces the codec of the spec. */
  codec?: Pick<KvCodec, 'keys' | 'values'>;
}

interface Options {
  /** Attend only with the last rows of each run: the js device is slow. */
  lastRows?: number;
  /** Leaves to read instead of the sealed ones, so that codes that round differently do not change the outputs. */
  leaves?: readonly Uint8Array[];
  /** Values instead of random ones, [token][KV head][dim]. */
  values?: Float32Array;
  /** A factor for the keys and values of the sinks. */
  sinkScale?: number;
  /** Drop the oldest pages beyond this many tokens. Chunks may not be longer than a page. */
  slideAt?: number;
  /** The layer sees only this many tokens; pages before that are overwritten. */
  window?: number;
  /** A factor for the scores. */
  scale?: number;
  softcap?: number;
  /** One per query head. */
  sinkLogits?: readonly number[];
  /** The rows are those of a prompt. */
  prefill?: boolean;
}

interface Inputs {
  mean: Float32Array;
  keys: Float32Array;
  values: Float32Array;
  queries: Float32Array;
}
const madeInputs = new Map<string, Inputs>();

/** Random inputs, made once per shape: devices and codecs are compared on the same ones. */
function inputsOf(headDim: number, heads: number, kvHeads: number, total: number): Inputs {
  const name = [headDim, heads, kvHeads, total].join();
  const made = madeInputs.get(name);
  if (made) return made;
  const random = createRandom(headDim + heads);
  const mean = normals(random, kvHeads * headDim);
  const keys = normals(random, total * kvHeads * headDim).map((x, i) => x + mean[i % mean.length]);
  const values = normals(random, total * kvHeads * headDim);
  const inputs = { mean, keys, values, queries: normals(random, total * heads * headDim) };
  madeInputs.set(name, inputs);
  return inputs;
}

/**
 * Appends keys and values to a cache in chunks and attends; returns the sealed leaves, their errors, the outputs and the
 * inputs. `attended` are the rows that have outputs.
 */
export async function runAttention(
  device: Device,
  { spec, headDim = 64, heads = 6, kvHeads = 2, pageTokens, codec }: AttentionCase,
  chunks: readonly number[],
  {
    lastRows = Number.POSITIVE_INFINITY,
    leaves,
    values,
    sinkScale = 1,
    slideAt,
    window,
    scale = 1,
    softcap,
    sinkLogits,
    prefill,
  }: Options = {},
) {
  const total = chunks.reduce((a, b) => a + b, 0);
  const { mean, queries, ...random } = inputsOf(headDim, heads, kvHeads, total);
  const made = createTrained(
    spec,
    { headDim, kvHeads, pageTokens, ropeFrequencies: createRopeFrequencies(headDim) },
    mean,
  );
  const { sink, recent } = made.window;
  const sequence: Sequence = createSequence({
    device,
    shape: { headDim, kvHeads, pageTokens: made.shape.pageTokens, sinks: sink },
    leaf: leafLayout([codec ?? made], { windows: [window] }),
    recent,
    context: slideAt ?? 4096,
    overflow: slideAt === undefined ? 'error' : 'slide',
  });
  const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.createTensor(total, n * headDim));
  const logits = sinkLogits && device.createTensor(1, heads);
  if (logits) device.writeRows(logits, 0, Float32Array.from(sinkLogits));
  const [keys, normal] = [random.keys, random.values].map(x =>
    x.map((value, i) => (i < sink * kvHeads * headDim ? value * sinkScale : value)),
  );
  device.writeRows(k, 0, keys);
  device.writeRows(v, 0, values ?? normal);
  device.writeRows(q, 0, queries);
  const sealed: Promise<Uint8Array>[] = [];
  const attended: number[] = [];
  let done = 0;
  for (const count of chunks) {
    const runs = sequence.plan(count);
    await device.ensureMemory?.([sequence.view]);
    for (const run of runs) {
      const { view } = sequence;
      if (run.sealedPages > 0 && run.position === run.sealedPages * made.shape.pageTokens + recent) {
        const page = run.sealedPages - 1;
        const leaf = view.leaves[page - view.firstLeaf];
        device.seal(0, [{ view, page }]);
        sealed.push(device.readBlock(leaf));
        if (leaves) device.writeBlock(leaf, leaves[page]);
      }
      // Nobody may read what is before the windows of all rows.
      for (const [i, leaf] of view.leaves.entries())
        if ((view.firstLeaf + i + 1) * made.shape.pageTokens <= firstVisible(run.position, window))
          device.writeBlock(leaf, new Uint8Array(leaf.bytes).fill(0xff));
      const row = done + run.row;
      device.append(0, k, v, [{ ...run, view, row }]);
      const left = Math.max(0, run.count - lastRows);
      const last = { count: run.count - left, position: run.position + left, row: row + left };
      device.attend(0, q, out, [{ ...run, ...last, view, prefill }], {
        scale: scale / Math.sqrt(headDim),
        softcap,
        sinkLogits: logits,
      });
      for (let i = 0; i < last.count; i++) attended.push(last.row + i);
    }
    sequence.commit(count);
    done += count;
  }
  const outputs = await Promise.all(Array.from({ length: total }, (_, r) => device.readRows(out, r)));
  const errors = await sequence.readErrors();
  const inputs = { queries, keys, values: values ?? normal };
  const result = { outputs, attended, leaves: await Promise.all(sealed), errors, ...inputs };
  sequence.dispose();
  for (const tensor of [k, v, q, out]) device.free(tensor);
  return result;
}

/** Ties may be rounded to another code, which changes the error a little. */
const SQUARED_ERROR = 1e-3;

/** Expects the squared errors of sealed pages to be the same, page by page and side by side. */
export function expectSameErrors(
  found: ReadonlyMap<number, Float32Array>,
  expected: ReadonlyMap<number, Float32Array>,
): void {
  expect([...found.keys()]).toEqual([...expected.keys()]);
  for (const [page, row] of expected) {
    row.forEach((error, i) => {
      const difference = Math.abs((found.get(page)?.[i] ?? Number.NaN) - error);
      expect(difference, `page ${page}, ${i % 2 === 0 ? 'keys' : 'values'}`).toBeLessThanOrEqual(SQUARED_ERROR * error);
    });
  }
}

/** The largest error of a head of a, relative to the average norm of `vectors`. */
export function worstHeadError(a: Float32Array, b: Float32Array, headDim: number, vectors: Float32Array): number {
  const average = norm(vectors) / Math.sqrt(vectors.length / headDim);
  const difference = a.map((x, i) => x - b[i]);
  const heads = Array.from({ length: a.length / headDim }, (_, h) =>
    difference.subarray(h * headDim, (h + 1) * headDim),
  );
  return Math.max(...heads.map(norm)) / average;
}

/**
 * The largest error of a score relative to |q| |k|. Outputs reveal the scores: each token of the first page has a value of
 * 1 in a dim of its own, and the last token, which both devices read from the tail, in the last dim.
 */
export async function maxScoreError(
  device: Device,
  exact: Device,
  { spec, headDim = 64, heads = 6, kvHeads = 2, pageTokens = 128 }: AttentionCase,
): Promise<number> {
  const total = pageTokens + 2;
  const visible = Math.min(pageTokens, headDim - 1);
  const values = new Float32Array(total * kvHeads * headDim);
  for (let n = 0; n < kvHeads; n++) {
    for (let t = 0; t < visible; t++) values[(t * kvHeads + n) * headDim + t] = 1;
    values[((total - 1) * kvHeads + n) * headDim + headDim - 1] = 1;
  }
  const attentionCase = { spec: `${spec.split('/')[0]}/f16`, headDim, heads, kvHeads, pageTokens };
  const expected = await runAttention(exact, attentionCase, [total - 1, 1], { lastRows: 1, values });
  const found = await runAttention(device, attentionCase, [total - 1, 1], {
    lastRows: 1,
    values,
    leaves: expected.leaves,
  });
  const [a, b] = [found, expected].map(({ outputs }) => outputs[total - 1].map(Math.log));
  let maxError = 0;
  for (let h = 0; h < heads; h++) {
    const query = norm(
      expected.queries.subarray(((total - 1) * heads + h) * headDim, ((total - 1) * heads + h + 1) * headDim),
    );
    const last = (h + 1) * headDim - 1;
    for (let t = 0; t < visible; t++) {
      const offset = (t * kvHeads + Math.floor((h * kvHeads) / heads)) * headDim;
      const key = norm(expected.keys.subarray(offset, offset + headDim));
      const error = Math.abs(a[h * headDim + t] - a[last] - (b[h * headDim + t] - b[last]));
      maxError = Math.max(maxError, error / ((query * key) / Math.sqrt(headDim)));
    }
  }
  return maxError;
}

/** RMS norm, RoPE, gates and copies one after the other, on the same random data for every device. */
export async function runSmallOperations(d: Device): Promise<Float32Array> {
  const [rows, cols] = [9, 192];
  const data = ['x', 'weight', 'angles', 'up'].map((_, i) => normals(createRandom(i), rows * cols));
  const [x, out, up] = [d.createTensor(rows, cols), d.createTensor(rows, cols), d.createTensor(rows, cols)];
  const [weight, headWeight, angles] = [d.createTensor(1, cols), d.createTensor(1, 64), d.createTensor(rows, 62)];
  d.writeRows(x, 0, data[0]);
  d.writeRows(up, 0, data[3]);
  d.writeRows(weight, 0, data[1].slice(0, cols));
  d.writeRows(headWeight, 0, data[1].slice(0, 64));
  d.writeRows(angles, 0, data[2].slice(0, rows * 62));
  d.rmsNorm(x, rows, weight, 1e-5, out);
  d.rmsNorm(out, rows, headWeight, 1e-5, out);
  d.rope(out, rows, 64, angles);
  d.gate(out, up, rows, 'silu');
  d.gate(out, up, rows, 'gelu');
  d.rmsNorm(x, rows, weight, 1e-5, out, true);
  d.gate(out, up, rows, 'clamped');
  d.softcap(out, rows, 0.5);
  d.rmsNorm(x, rows, weight, 0.1, out, true);
  d.copyRows(out, 2, x, 0, 1);
  d.copyRows(x, 0, out, 8, 1);
  const table = await d.loadWeights('F32', 3, cols, async into =>
    into.set(new Uint8Array(data[3].slice(0, 3 * cols).buffer)),
  );
  const embedded = d.createTensor(2, cols);
  d.embed(table, [2, 0], embedded, 12.5);
  const rowsOf = (x: Tensor) => Promise.all(Array.from({ length: x.rows }, (_, r) => d.readRows(x, r)));
  const read = [...(await rowsOf(out)), ...(await rowsOf(embedded))];
  return Float32Array.from(read.flatMap(row => [...row]));
}
