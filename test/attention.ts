/** Attention of a device on fresh random data, in any chunks: what devices are held against each other by. */
import type { LeafLayout } from '../src/cache/leaf.ts';
import { createSequence, type Sequence } from '../src/cache/sequence.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { norm as lengthOf } from '../src/codec/parts/vector.ts';
import type { Device } from '../src/kernel/device.ts';
import { planOf } from '../src/plan/plan.ts';

/** How far a is from b, of the length of b. */
export const far = (a: Float32Array, b: Float32Array): number =>
  lengthOf(a.map((x, i) => x - b[i])) / (lengthOf(b) || 1);

export interface Setting {
  spec: string;
  headDim?: number;
  heads?: number;
  kvHeads?: number;
  pageTokens?: number;
  /** In place of the codecs of the spec. */
  leaf?: LeafLayout;
}

interface Options {
  /** Attend with the last rows of each run alone: the js device is slow. */
  most?: number;
  /** Leaves to read in place of those that are sealed: a code that falls on the other side of a tie shall not show. */
  leaves?: readonly Uint8Array[];
}

/** Runs keys and values through a cache in chunks and gives the sealed leaves and the outputs. */
export async function runAttention(
  device: Device,
  { spec, headDim = 64, heads = 6, kvHeads = 2, pageTokens, leaf }: Setting,
  chunks: readonly number[],
  { most = Number.POSITIVE_INFINITY, leaves }: Options = {},
) {
  const plan = planOf(spec, { layers: 1, kvHeads, headDim, pageTokens });
  const { sink, recent } = plan.window;
  const sequence: Sequence = createSequence({
    device,
    shape: { headDim, kvHeads, pageTokens: plan.pageTokens, sinks: sink },
    leaf: leaf ?? plan.leaf,
    recent,
    context: 4096,
  });
  const total = chunks.reduce((a, b) => a + b, 0);
  const random = createRandom(headDim + heads);
  const mean = normals(random, kvHeads * headDim);
  const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.tensor(total, n * headDim));
  device.write(
    k,
    0,
    normals(random, total * kvHeads * headDim).map((x, i) => x + mean[i % mean.length]),
  );
  device.write(v, 0, normals(random, total * kvHeads * headDim));
  device.write(q, 0, normals(random, total * heads * headDim));
  const sealed: Promise<Uint8Array>[] = [];
  let done = 0;
  for (const count of chunks) {
    for (const run of sequence.plan(count)) {
      const { view } = sequence;
      if (run.sealed > 0 && run.position === run.sealed * plan.pageTokens + recent) {
        const page = run.sealed - 1;
        device.seal(view, 0, page, view.leaves[page]);
        sealed.push(device.readBlock(view.leaves[page]));
        if (leaves) device.writeBlock(view.leaves[page], leaves[page]);
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
  return { outputs, leaves: await Promise.all(sealed) };
}
