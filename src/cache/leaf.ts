/** The layout of a leaf: for each layer its key page and its value page, aligned so that devices read whole words. */
import type { KvLayer, KvShape, PageCodec } from '../kernel/device.ts';
import type { KeyReader, ValueReader } from '../kernel/js/attend.ts';

const ALIGN = 16;
const align = (bytes: number) => Math.ceil(bytes / ALIGN) * ALIGN;

export interface LayerCodecs {
  keys: PageCodec & KeyReader;
  values: PageCodec & ValueReader;
}

export interface LeafLayout {
  readonly layers: readonly KvLayer[];
  readonly bytes: number;
}

export function leafLayout(codecs: readonly LayerCodecs[]): LeafLayout {
  let offset = 0;
  const layers = codecs.map(({ keys, values }) => {
    const keyOffset = offset;
    const valueOffset = keyOffset + align(keys.pageBytes);
    offset = valueOffset + align(values.pageBytes);
    return { keys, values, keyOffset, valueOffset };
  });
  return { layers, bytes: offset };
}

/** Whether devices can read a leaf of unknown origin safely: some pages have lists, which must stay inside them. */
export function isValidLeaf({ layers }: LeafLayout, leaf: Uint8Array): boolean {
  const isValid = ({ isValid, pageBytes }: PageCodec, offset: number) =>
    isValid?.(leaf.subarray(offset, offset + pageBytes)) ?? true;
  return layers.every(
    ({ keys, values, keyOffset, valueOffset }) => isValid(keys, keyOffset) && isValid(values, valueOffset),
  );
}

/** Size of a tail or sink block: f16 keys and values of `tokens` tokens in all layers. */
export function f16BlockBytes(
  { layers, kvHeads, headDim }: Pick<KvShape, 'layers' | 'kvHeads' | 'headDim'>,
  tokens: number,
): number {
  return layers.length * 2 * kvHeads * tokens * headDim * 2;
}
