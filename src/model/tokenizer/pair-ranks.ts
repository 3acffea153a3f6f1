/**
 * Merge ranks by token pair: an open-addressing hash table in three typed arrays, 12 bytes per slot and at most half
 * full. A vocabulary of 128K tokens has 280K merges: 12 MB here, over 100 MB as strings in a Map.
 */
export class PairRanks {
  readonly #left: Int32Array;
  readonly #right: Int32Array;
  readonly #rank: Int32Array;
  readonly #mask: number;

  constructor(capacity: number) {
    const slots = 2 ** Math.ceil(Math.log2(2 * Math.max(1, capacity)));
    this.#left = new Int32Array(slots).fill(-1);
    this.#right = new Int32Array(slots);
    this.#rank = new Int32Array(slots);
    this.#mask = slots - 1;
  }

  /** A pair that is added twice keeps its first rank. */
  add(left: number, right: number, rank: number): void {
    const slot = this.#findSlot(left, right);
    if (this.#left[slot] !== -1) return;
    this.#left[slot] = left;
    this.#right[slot] = right;
    this.#rank[slot] = rank;
  }

  get(left: number, right: number): number | undefined {
    const slot = this.#findSlot(left, right);
    return this.#left[slot] === -1 ? undefined : this.#rank[slot];
  }

  /** The slot of a pair, or the free slot to put it in. */
  #findSlot(left: number, right: number): number {
    let slot = (Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b)) >>> 0;
    for (slot = (slot ^ (slot >>> 15)) & this.#mask; ; slot = (slot + 1) & this.#mask) {
      if (this.#left[slot] === -1 || (this.#left[slot] === left && this.#right[slot] === right)) return slot;
    }
  }
}
