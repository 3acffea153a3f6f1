/** Reads vectors of a sequence back as floats: what attention sees. */
import type { Block, Device, KvView, PageCodec } from '../kernel/device.ts';
import { fromF16 } from '../kernel/float.ts';
import { tailBlockTokens, visibleSinks } from '../kernel/visibility.ts';

/** Keys and values, [token][kv head][dim]. */
export interface Vectors {
  keys: Float32Array;
  values: Float32Array;
}

/**
 * The tokens from `from` to before `to` of one layer: sealed pages decoded, sinks and tail from f16. None is dropped.
 * `exactView`: pages that it has are read from there.
 */
export async function decodeVectors(
  device: Device,
  view: KvView,
  layer: number,
  from: number,
  to: number,
  exactView?: KvView,
): Promise<Vectors> {
  const { headDim, kvHeads, pageTokens, sinks, tailTokens } = view.shape;
  const rowLength = kvHeads * headDim;
  const out: Vectors = {
    keys: new Float32Array((to - from) * rowLength),
    values: new Float32Array((to - from) * rowLength),
  };
  const sides = [out.keys, out.values];

  const readPage = async (page: number) => {
    const start = page * pageTokens;
    const at = page - view.firstLeaf;
    const { leaves, shape } = exactView && at < exactView.leaves.length ? exactView : view;
    const { keys, values, keyOffset, valueOffset } = shape.layers[layer];
    const bytes = await device.readBlock(leaves[at]);
    const [first, end] = [Math.max(from, start), Math.min(to, start + pageTokens)];
    const rows = new Float32Array(pageTokens * rowLength);
    const decode = (codec: PageCodec, offset: number, out: Float32Array) => {
      codec.decode(bytes.subarray(offset, offset + codec.pageBytes), pageTokens, rows, start);
      out.set(rows.subarray((first - start) * rowLength, (end - start) * rowLength), (first - from) * rowLength);
    };
    decode(keys, keyOffset, out.keys);
    decode(values, valueOffset, out.values);
  };

  /** Reads tokens `first` to before `end` of a block of [layer][side][kv head][capacity][dim]; token n is at n % capacity. */
  const readF16 = async (block: Block, capacity: number, first: number, end: number) => {
    if (first >= end) return;
    const values = new Uint16Array((await device.readBlock(block)).buffer);
    sides.forEach((out, side) => {
      for (let n = first; n < end; n++) {
        for (let head = 0; head < kvHeads; head++) {
          const at = (((2 * layer + side) * kvHeads + head) * capacity + (n % capacity)) * headDim;
          for (let j = 0; j < headDim; j++) out[(n - from) * rowLength + head * headDim + j] = fromF16(values[at + j]);
        }
      }
    });
  };

  const readTail = async (first: number, end: number) => {
    const blockTokens = tailBlockTokens(pageTokens);
    for (let n = first; n < end; ) {
      const next = Math.min(end, n - (n % blockTokens) + blockTokens);
      await readF16(view.tail[Math.floor((n % tailTokens) / blockTokens)]!, blockTokens, n, next);
      n = next;
    }
  };

  const sealedPages = view.firstLeaf + view.leaves.length;
  await device.ensureMemory?.(exactView ? [view, exactView] : [view]);
  for (let page = Math.floor(from / pageTokens); page < sealedPages && page * pageTokens < to; page++)
    await readPage(page);
  await readF16(view.sinkBlock, sinks, from, Math.min(to, visibleSinks(sealedPages, view.shape)));
  await readTail(Math.max(from, sealedPages * pageTokens), to);
  return out;
}
