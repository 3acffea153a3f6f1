/** Where the fields of a page lie: first those that all heads share, then a block a head, then what may be left empty. */

/** Goes up when the bytes of any codec's page change: pages of another version are refused, never misread. */
export const FORMAT_VERSION = 3;

export interface Field {
  name: string;
  bytes: number;
  per: 'page' | 'head' | 'rest';
  /** What is in it, word by word. */
  about: string;
}

export interface Layout {
  pageBytes: number;
  /** Bytes before the first head's block, and of a block. */
  sharedBytes: number;
  blockBytes: number;
  /** Of a field in a head's block (or in the page, where heads share it or it comes last). */
  offset(name: string): number;
  /** The bytes of one field (of one head) in a page. */
  field(page: Uint8Array, name: string, head: number): Uint8Array;
}

export function layOut(fields: readonly Field[], kvHeads: number): Layout {
  const places = new Map<string, { offset: number; field: Field }>();
  let shared = 0;
  let block = 0;
  let rest = 0;
  for (const field of fields) {
    places.set(field.name, { offset: field.per === 'page' ? shared : field.per === 'head' ? block : rest, field });
    if (field.per === 'page') shared += field.bytes;
    else if (field.per === 'head') block += field.bytes;
    else rest += field.bytes;
  }
  const blocksEnd = shared + kvHeads * block;
  const offsetOf = (name: string) => {
    const { offset, field } = places.get(name)!;
    return field.per === 'rest' ? blocksEnd + offset : offset;
  };
  return {
    pageBytes: blocksEnd + rest,
    sharedBytes: shared,
    blockBytes: block,
    offset: offsetOf,
    field(page, name, head) {
      const { field } = places.get(name)!;
      const start = offsetOf(name) + (field.per === 'head' ? shared + head * block : 0);
      return page.subarray(start, start + field.bytes);
    },
  };
}
