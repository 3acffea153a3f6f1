/** Reads tokens of a sequence back as floats: what attention sees. */
import type { Block, Device, KvView, PageCodec } from '../kernel/device.ts';
import { fromF16 } from '../kernel/float.ts';
import { pageBlock, tailBlockTokens, visibleSinks } from '../kernel/visibility.ts';
import { createYielder } from '../platform/event-loop.ts';
import { checkTokens } from '../util/rules.ts';
import type { HeldContent } from './sequence.ts';

/** Keys and values, [token][kv head][dim]. */
export interface Vectors {
  keys: Float32Array;
  values: Float32Array;
}

/** The first token that is there in all of these layers: sliding and windows drop the oldest pages. */
export function firstToken({ windowPages, firstLeaf, shape }: KvView, layers: readonly number[]): number {
  const areWindowed = windowPages && layers.some(layer => shape.layers[layer].window);
  const kept = areWindowed ? windowPages.findIndex(page => page !== undefined) : 0;
  return (firstLeaf + (kept < 0 ? windowPages!.length : kept)) * shape.pageTokens;
}

/**
 * The tokens from `from` to before `to` in each of these layers: sealed pages decoded, sinks and tail from f16. Pages that
 * `exactView` has are read from there. Default: all tokens that are not dropped. Every block is read once.
 */
export async function decodeVectors(
  device: Device,
  { view, exactView, length }: Pick<HeldContent, 'view' | 'exactView' | 'length'>,
  layers: readonly number[],
  from = firstToken(view, layers),
  to = length,
): Promise<Vectors[]> {
  const { headDim, kvHeads, pageTokens, sinks, tailTokens } = view.shape;
  checkTokens('from', from, firstToken(view, layers), length);
  checkTokens('to', to, from, length);
  const rowLength = kvHeads * headDim;
  const createRows = (tokens: number) => new Float32Array(tokens * rowLength);
  const found = layers.map((): Vectors => ({ keys: createRows(to - from), values: createRows(to - from) }));
  const page = createRows(pageTokens);
  const yielder = createYielder();

  const readPage = async (view: KvView, index: number) => {
    const start = index * pageTokens;
    const [first, end] = [Math.max(from, start), Math.min(to, start + pageTokens)];
    const contents = new Map<Block, Uint8Array>();
    const read = async (block: Block) => {
      const bytes = contents.get(block) ?? (await device.readBlock(block));
      contents.set(block, bytes);
      return bytes;
    };
    const decode = (bytes: Uint8Array, codec: PageCodec, offset: number, out: Float32Array) => {
      codec.decode(bytes.subarray(offset, offset + codec.pageBytes), pageTokens, page, start);
      out.set(page.subarray((first - start) * rowLength, (end - start) * rowLength), (first - from) * rowLength);
    };
    for (const [i, layer] of layers.entries()) {
      const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
      const bytes = await read(pageBlock(view, layer, index));
      decode(bytes, keys, keyOffset, found[i].keys);
      decode(bytes, values, valueOffset, found[i].values);
      if (yielder.isDue()) await yielder.yieldNow();
    }
  };

  /** Reads tokens `first` to before `end` of a block of [layer][side][kv head][capacity][dim]; token n is at n % capacity. */
  const readF16 = async (block: Block, capacity: number, first: number, end: number) => {
    if (first >= end) return;
    const source = new Uint16Array((await device.readBlock(block)).buffer);
    const copy = (out: Float32Array, part: number) => {
      for (let n = first; n < end; n++) {
        for (let head = 0; head < kvHeads; head++) {
          const at = ((part * kvHeads + head) * capacity + (n % capacity)) * headDim;
          for (let j = 0; j < headDim; j++) out[(n - from) * rowLength + head * headDim + j] = fromF16(source[at + j]);
        }
      }
    };
    for (const [i, layer] of layers.entries()) {
      copy(found[i].keys, 2 * layer);
      copy(found[i].values, 2 * layer + 1);
    }
  };

  await device.ensureMemory?.(exactView ? [view, exactView] : [view]);
  const sealedPages = view.firstLeaf + view.leaves.length;
  const exactPages = view.firstLeaf + (exactView?.leaves.length ?? 0);
  for (let index = Math.floor(from / pageTokens); index < sealedPages && index * pageTokens < to; index++)
    await readPage(exactView && index < exactPages ? exactView : view, index);
  await readF16(view.sinkBlock, sinks, from, Math.min(to, visibleSinks(sealedPages, view.shape)));
  const blockTokens = tailBlockTokens(pageTokens);
  for (let n = Math.max(from, sealedPages * pageTokens); n < to; ) {
    const next = Math.min(to, n - (n % blockTokens) + blockTokens);
    await readF16(view.tail[Math.floor((n % tailTokens) / blockTokens)]!, blockTokens, n, next);
    n = next;
  }
  return found;
}
