/**
 * Ranks of pairs of tokens: a hash table in three typed arrays, 12 bytes a slot and at most half full. A vocabulary of
 * 128K tokens has 280K merges; as strings in a Map they would take a hundred megabytes, here they take 12.
 */
export class PairRanks {
  readonly #left: Int32Array;
  readonly #right: Int32Array;
  readonly #rank: Int32Array;
  readonly #mask: number;

  /** Has room for `pairs` pairs. */
  constructor(pairs: number) {
    const slots = 2 ** Math.ceil(Math.log2(2 * Math.max(1, pairs)));
    this.#left = new Int32Array(slots).fill(-1);
    this.#right = new Int32Array(slots);
    this.#rank = new Int32Array(slots);
    this.#mask = slots - 1;
  }

  /** The first rank that a pair is given counts. */
  add(left: number, right: number, rank: number): void {
    const slot = this.#slot(left, right);
    if (this.#left[slot] !== -1) return;
    this.#left[slot] = left;
    this.#right[slot] = right;
    this.#rank[slot] = rank;
  }

  get(left: number, right: number): number | undefined {
    const slot = this.#slot(left, right);
    return this.#left[slot] === -1 ? undefined : this.#rank[slot];
  }

  /** Where the pair is, or the free slot where it would be. */
  #slot(left: number, right: number): number {
    let slot = (Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b)) >>> 0;
    for (slot = (slot ^ (slot >>> 15)) & this.#mask; ; slot = (slot + 1) & this.#mask) {
      if (this.#left[slot] === -1 || (this.#left[slot] === left && this.#right[slot] === right)) return slot;
    }
  }
}
