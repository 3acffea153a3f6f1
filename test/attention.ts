/** Attention of a device on fresh random data, in any chunks: what devices are held against each other by. */
import { leafLayout } from '../src/cache/leaf.ts';
import { createSequence, type Sequence } from '../src/cache/sequence.ts';
import { createTrained } from '../src/codec/codec.case.ts';
import type { KvCodec } from '../src/codec/kv.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { norm as lengthOf } from '../src/codec/parts/vector.ts';
import { turnOf } from '../src/eval/vectors.ts';
import type { Device } from '../src/kernel/device.ts';

/** Beside the zoo: turns of codecs that devices read by ways of their own. */
export const VARIANTS = [
  'tq4-haar',
  'tq4-n32',
  'tq4-nc',
  'kivi2g32-token/kivi2g32-channel',
  'oscar2g32-xh',
  'kivi8g32',
  'kivi1g32',
];

/** How far a is from b, of the length of b. */
export const far = (a: Float32Array, b: Float32Array): number =>
  lengthOf(a.map((x, i) => x - b[i])) / (lengthOf(b) || 1);

export interface Setting {
  spec: string;
  headDim?: number;
  heads?: number;
  kvHeads?: number;
  pageTokens?: number;
  /** In place of what the spec makes. */
  codec?: Pick<KvCodec, 'keys' | 'values'>;
}

interface Options {
  /** Attend with the last rows of each run alone: the js device is slow. */
  most?: number;
  /** Leaves to read in place of those that are sealed: a code that falls on the other side of a tie shall not show. */
  leaves?: readonly Uint8Array[];
  /** Values in place of random ones, [token][kv head][dim]. */
  values?: Float32Array;
  /** Keys and values of the sinks are this many times as large as those of other tokens. */
  sinkScale?: number;
  /** Drop the oldest pages past this many tokens. No chunk may be longer than a page then. */
  slideAt?: number;
}

/** Runs keys and values through a cache in chunks and gives the sealed leaves and the outputs. */
export async function runAttention(
  device: Device,
  { spec, headDim = 64, heads = 6, kvHeads = 2, pageTokens, codec }: Setting,
  chunks: readonly number[],
  { most = Number.POSITIVE_INFINITY, leaves, values, sinkScale = 1, slideAt }: Options = {},
) {
  const random = createRandom(headDim + heads);
  const mean = normals(random, kvHeads * headDim);
  const made = createTrained(spec, { headDim, kvHeads, pageTokens, turn: turnOf(headDim) }, mean);
  const { sink, recent } = made.window;
  const sequence: Sequence = createSequence({
    device,
    shape: { headDim, kvHeads, pageTokens: made.shape.pageTokens, sinks: sink },
    leaf: leafLayout([codec ?? made]),
    recent,
    context: slideAt ?? 4096,
    overflow: slideAt === undefined ? 'error' : 'slide',
  });
  const total = chunks.reduce((a, b) => a + b, 0);
  const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.tensor(total, n * headDim));
  const keys = normals(random, total * kvHeads * headDim).map((x, i) => x + mean[i % mean.length]);
  const normal = normals(random, total * kvHeads * headDim);
  for (const x of [keys, normal]) {
    for (let i = 0; i < sink * kvHeads * headDim; i++) x[i] *= sinkScale;
  }
  const queries = normals(random, total * heads * headDim);
  device.write(k, 0, keys);
  device.write(v, 0, values ?? normal);
  device.write(q, 0, queries);
  const sealed: Promise<Uint8Array>[] = [];
  let done = 0;
  for (const count of chunks) {
    const runs = sequence.plan(count);
    await device.ready?.([sequence.view]);
    for (const run of runs) {
      const { view } = sequence;
      if (run.sealed > 0 && run.position === run.sealed * made.shape.pageTokens + recent) {
        const page = run.sealed - 1;
        const leaf = view.leaves[page - view.firstLeaf];
        device.seal(view, 0, page, leaf);
        sealed.push(device.readBlock(leaf));
        if (leaves) device.writeBlock(leaf, leaves[page]);
      }
      const row = done + run.row;
      device.append(0, k, v, [{ ...run, view, row }]);
      const left = Math.max(0, run.count - most);
      const last = { count: run.count - left, position: run.position + left, row: row + left };
      device.attend(0, q, out, [{ ...run, ...last, view }], 1 / Math.sqrt(headDim));
    }
    sequence.commit(count);
    done += count;
  }
  const outputs = await Promise.all(Array.from({ length: total }, (_, r) => device.read(out, r)));
  return { outputs, leaves: await Promise.all(sealed), queries, keys, values: values ?? normal };
}

/** How far a is from b in its worst head, of the length that these vectors have on the whole. */
export function farOf(a: Float32Array, b: Float32Array, headDim: number, vectors: Float32Array): number {
  const length = lengthOf(vectors) / Math.sqrt(vectors.length / headDim);
  const apart = a.map((x, i) => x - b[i]);
  const heads = Array.from({ length: a.length / headDim }, (_, h) => apart.subarray(h * headDim, (h + 1) * headDim));
  return Math.max(...heads.map(lengthOf)) / length;
}

/**
 * How far the scores of a device are from those of another, of |q| |k|. Values tell the weights: each token of the first
 * page has a 1 in a dim of its own, and the last token, which both devices read from the tail, in the last dim.
 */
export async function farScores(
  device: Device,
  exact: Device,
  { spec, headDim = 64, heads = 6, kvHeads = 2, pageTokens = 128 }: Setting,
): Promise<number> {
  const total = pageTokens + 2;
  const seen = Math.min(pageTokens, headDim - 1);
  const values = new Float32Array(total * kvHeads * headDim);
  for (let n = 0; n < kvHeads; n++) {
    for (let t = 0; t < seen; t++) values[(t * kvHeads + n) * headDim + t] = 1;
    values[((total - 1) * kvHeads + n) * headDim + headDim - 1] = 1;
  }
  const setting = { spec: `${spec.split('/')[0]}/f16`, headDim, heads, kvHeads, pageTokens };
  const right = await runAttention(exact, setting, [total - 1, 1], { most: 1, values });
  const found = await runAttention(device, setting, [total - 1, 1], { most: 1, values, leaves: right.leaves });
  const [a, b] = [found, right].map(({ outputs }) => outputs[total - 1].map(Math.log));
  let worst = 0;
  for (let h = 0; h < heads; h++) {
    const query = lengthOf(
      right.queries.subarray(((total - 1) * heads + h) * headDim, ((total - 1) * heads + h + 1) * headDim),
    );
    const last = (h + 1) * headDim - 1;
    for (let t = 0; t < seen; t++) {
      const at = (t * kvHeads + Math.floor((h * kvHeads) / heads)) * headDim;
      const key = lengthOf(right.keys.subarray(at, at + headDim));
      const apart = Math.abs(a[h * headDim + t] - a[last] - (b[h * headDim + t] - b[last]));
      worst = Math.max(worst, apart / ((query * key) / Math.sqrt(headDim)));
    }
  }
  return worst;
}

/** Norms, turns, gates and copies in a row: the small operations of a device, on the same random data for all. */
export async function runSmallOperations(d: Device): Promise<Float32Array> {
  const [rows, cols] = [9, 192];
  const data = ['x', 'weight', 'angles', 'up'].map((_, i) => normals(createRandom(i), rows * cols));
  const [x, out, up] = [d.tensor(rows, cols), d.tensor(rows, cols), d.tensor(rows, cols)];
  const [weight, headWeight, angles] = [d.tensor(1, cols), d.tensor(1, 64), d.tensor(rows, 62)];
  d.write(x, 0, data[0]);
  d.write(up, 0, data[3]);
  d.write(weight, 0, data[1].slice(0, cols));
  d.write(headWeight, 0, data[1].slice(0, 64));
  d.write(angles, 0, data[2].slice(0, rows * 62));
  d.norm(x, rows, weight, 1e-5, out);
  d.norm(out, rows, headWeight, 1e-5, out);
  d.rope(out, rows, 64, angles);
  d.swiglu(out, up, rows);
  d.copy(out, 2, x, 0, 1);
  d.copy(x, 0, out, 8, 1);
  const read = await Promise.all(Array.from({ length: rows }, (_, r) => d.read(out, r)));
  return Float32Array.from(read.flatMap(row => [...row]));
}
