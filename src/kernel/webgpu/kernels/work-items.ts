/**
 * Work items of attention: a few words in `data`, from `item` on. The table (../attention-table.ts) writes them and kernels
 * read them, both by the names in these lists.
 */

function workItem<Field extends string>(fields: readonly Field[]) {
  const access = (n: number) => (n === 0 ? 'data[item]' : `data[item + ${n}]`);
  return {
    words: fields.length,
    /** WGSL that reads each field. */
    at: Object.fromEntries(fields.map((field, n) => [field, access(n)])) as Record<Field, string>,
    /** The words of an item. */
    write: (values: Record<Field, number>): number[] => fields.map(field => values[field]),
  };
}

/** Some pages of a sequence: where the list of their slots begins, and tokens to skip. */
export const PAGE_ITEM = workItem([
  'row',
  'rows',
  'slots',
  /** One page each. */
  'rounds',
  'skippedTokens',
  'firstState',
  /** States between rows. */
  'stateStride',
  /** Its index in the sequence. */
  'firstPage',
  /** The first page to read, counted from `firstPage`. */
  'firstRound',
  /** Of the first row, relative to the first page (i32). */
  'windowStart',
]);

/** Some f16 tokens of a tail, or of the sinks. The fields of the loop over rounds are those of PAGE_ITEM. */
export const F16_ITEM = workItem([
  'row',
  'rows',
  /** 1 for sinks, 0 for a tail. */
  'isSinks',
  'rounds',
  /** The list of slots of a tail, the slot of sinks. */
  'slots',
  'firstState',
  'stateStride',
  'firstToken',
  /** The end of what the first row sees. */
  'endToken',
  'windowStart',
]);

/** Pages whose queries are transformed: where their words go, and their number. */
export const QUERY_ITEM = workItem(['row', 'rows', 'target', 'targetStride', 'pages', 'firstPage']);
