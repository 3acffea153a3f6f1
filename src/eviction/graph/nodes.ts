/**
 * The nodes of the graph: leaves by key, cached or remembered. A node is a slot in typed arrays, which makes a million of them
 * cheap to keep and to walk. Slots are used again after a node was removed.
 */

interface TypedArray {
  [slot: number]: number;
  readonly length: number;
  set(values: this): void;
  fill(value: number, start?: number, end?: number): this;
}

/** One value per slot, or `width` of them. `data` is replaced when the table grows: read it anew after a node was added. */
export interface Column<A extends TypedArray> {
  data: A;
}

export interface Nodes {
  readonly size: number;
  /** All slots are below this. */
  readonly slots: number;
  readonly key: Column<Float64Array>;
  /** Adds a column. Slots of new nodes have the value `empty`. */
  column<A extends TypedArray>(type: new (length: number) => A, empty: number, width?: number): Column<A>;
  /** The slot of a key; -1 if it is not known. */
  find(key: number): number;
  /** Adds a key that is not known. */
  add(key: number): number;
  remove(slot: number): void;
  /** Makes it the last in the order of use. */
  touch(slot: number): void;
  /** The first slot in the order of use, the one after a slot; -1: none. */
  oldest(): number;
  after(slot: number): number;
}

const MIN_SLOTS = 1024;

export function createNodes(): Nodes {
  const slotOf = new Map<number, number>();
  const columns: { grow(length: number): void; clear(slot: number): void }[] = [];
  let slots = 0;
  let length = MIN_SLOTS;
  const column: Nodes['column'] = (type, empty, width = 1) => {
    const one = { data: new type(width * length).fill(empty) };
    columns.push({
      grow(longer) {
        const grown = new type(width * longer).fill(empty, one.data.length);
        grown.set(one.data);
        one.data = grown;
      },
      clear(slot) {
        one.data.fill(empty, width * slot, width * (slot + 1));
      },
    });
    return one;
  };
  const key = column(Float64Array, 0);
  /** The order of use, a linked list. `before` of a free slot is the next free one. */
  const [before, next] = [column(Int32Array, -1), column(Int32Array, -1)];
  let [first, last, free] = [-1, -1, -1];
  const unlink = (slot: number) => {
    const [a, b] = [before.data[slot], next.data[slot]];
    if (a < 0) first = b;
    else next.data[a] = b;
    if (b < 0) last = a;
    else before.data[b] = a;
  };
  const append = (slot: number) => {
    before.data[slot] = last;
    next.data[slot] = -1;
    if (last < 0) first = slot;
    else next.data[last] = slot;
    last = slot;
  };
  const takeSlot = (): number => {
    if (free >= 0) {
      const slot = free;
      free = before.data[slot];
      return slot;
    }
    if (slots === length) {
      length *= 2;
      for (const one of columns) one.grow(length);
    }
    return slots++;
  };
  return {
    get size() {
      return slotOf.size;
    },
    get slots() {
      return slots;
    },
    key,
    column,
    find: name => slotOf.get(name) ?? -1,
    add(name) {
      const slot = takeSlot();
      slotOf.set(name, slot);
      key.data[slot] = name;
      append(slot);
      return slot;
    },
    remove(slot) {
      unlink(slot);
      slotOf.delete(key.data[slot]);
      for (const one of columns) one.clear(slot);
      before.data[slot] = free;
      free = slot;
    },
    touch(slot) {
      if (slot === last) return;
      unlink(slot);
      append(slot);
    },
    oldest: () => first,
    after: slot => next.data[slot],
  };
}
