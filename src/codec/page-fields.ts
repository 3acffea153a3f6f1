/** The fields of a page: first those that all heads share, then one block per head, then fields of variable length. */

/** Incremented when the bytes of any codec's page change. Pages of other versions are rejected. */
export const FORMAT_VERSION = 4;

export interface Field {
  name: string;
  bytes: number;
  per: 'page' | 'head' | 'rest';
  /** Description of its content. */
  about: string;
}

export interface FieldOffsets {
  pageBytes: number;
  /** Bytes before the first head's block. */
  sharedBytes: number;
  /** Bytes per head's block. */
  blockBytes: number;
  /** Offset of a field in a head's block, or in the page if it is not per head. */
  offset(name: string): number;
  /** The bytes of one field (of one head) in a page. */
  field(page: Uint8Array, name: string, head: number): Uint8Array;
}

export function layoutFields(fields: readonly Field[], kvHeads: number): FieldOffsets {
  const byName = new Map<string, { offset: number; field: Field }>();
  let sharedBytes = 0;
  let blockBytes = 0;
  let restBytes = 0;
  for (const field of fields) {
    byName.set(field.name, {
      offset: field.per === 'page' ? sharedBytes : field.per === 'head' ? blockBytes : restBytes,
      field,
    });
    if (field.per === 'page') sharedBytes += field.bytes;
    else if (field.per === 'head') blockBytes += field.bytes;
    else restBytes += field.bytes;
  }
  const blocksEnd = sharedBytes + kvHeads * blockBytes;
  const offsetOf = (name: string) => {
    const { offset, field } = byName.get(name)!;
    return field.per === 'rest' ? blocksEnd + offset : offset;
  };
  return {
    pageBytes: blocksEnd + restBytes,
    sharedBytes,
    blockBytes,
    offset: offsetOf,
    field(page, name, head) {
      const { field } = byName.get(name)!;
      const start = offsetOf(name) + (field.per === 'head' ? sharedBytes + head * blockBytes : 0);
      return page.subarray(start, start + field.bytes);
    },
  };
}
