/** Where the fields of a page lie: first those that all heads share, then one block a head with the rest. */

/** Goes up when the bytes of any codec's page change: pages of another version are refused, never misread. */
export const FORMAT_VERSION = 1;

export interface Field {
  name: string;
  bytes: number;
  per: 'page' | 'head';
  /** What is in it, word by word. */
  about: string;
}

export interface Layout {
  pageBytes: number;
  /** Bytes before the first head's block, and of a block. */
  sharedBytes: number;
  blockBytes: number;
  /** Of a field in a head's block (or in the page, where heads share it). */
  offset(name: string): number;
  /** The bytes of one field (of one head) in a page. */
  field(page: Uint8Array, name: string, head: number): Uint8Array;
}

export function layOut(fields: readonly Field[], kvHeads: number): Layout {
  const places = new Map<string, { offset: number; field: Field }>();
  let shared = 0;
  let block = 0;
  for (const field of fields) {
    places.set(field.name, { offset: field.per === 'page' ? shared : block, field });
    if (field.per === 'page') shared += field.bytes;
    else block += field.bytes;
  }
  return {
    pageBytes: shared + kvHeads * block,
    sharedBytes: shared,
    blockBytes: block,
    offset: name => places.get(name)!.offset,
    field(page, name, head) {
      const { offset, field } = places.get(name)!;
      const start = field.per === 'page' ? offset : shared + head * block + offset;
      return page.subarray(start, start + field.bytes);
    },
  };
}
