/** The n largest of many values, largest first, without sorting all of them. */
export interface TopK {
  /** Indices of the largest values, largest first, equal values by index. Valid until the next call. */
  readonly ids: Int32Array;
  /** Number of valid entries in `ids`. */
  readonly count: number;
}

/** For more values than this, a heap is slower than the native sort of everything. */
const HEAP_LIMIT = 512;
/** A double holds 32 bits of value and 21 of id. */
const ID_LIMIT = 2 ** 21;

/** Returns a selection function that reuses its buffers. */
export function createTopK(): (values: Float32Array, n: number) => TopK {
  let heap = new Int32Array(0);
  let keys = new Float64Array(0);

  return (values, n) => {
    const count = Math.min(n, values.length);
    if (heap.length < count) heap = new Int32Array(count);
    if (count > HEAP_LIMIT && values.length <= ID_LIMIT) {
      if (keys.length !== values.length) keys = new Float64Array(values.length);
      sortedIds(values, keys, heap.subarray(0, count));
      return { ids: heap, count };
    }
    largest(values, heap, count);
    return { ids: heap, count };
  };
}

/** Fills `heap` with the ids of the `count` largest values: a min-heap, in which most values fail the first comparison. */
function largest(values: Float32Array, heap: Int32Array, count: number): void {
  if (count === 0) return;
  for (let id = 0; id < count; id++) heap[id] = id;
  for (let i = (count >> 1) - 1; i >= 0; i--) sink(values, heap, i, heap[i]!, count);
  // A later id loses every tie, so only a strictly larger value gets in.
  let floor = values[heap[0]!]!;
  for (let id = count; id < values.length; id++) {
    if (values[id]! <= floor) continue;
    sink(values, heap, 0, id, count);
    floor = values[heap[0]!]!;
  }
  for (let size = count - 1; size > 0; size--) {
    const worst = heap[0]!;
    sink(values, heap, 0, heap[size]!, size);
    heap[size] = worst;
  }
}

function sink(values: Float32Array, heap: Int32Array, from: number, id: number, size: number): void {
  let i = from;
  for (;;) {
    let child = 2 * i + 1;
    if (child >= size) break;
    if (child + 1 < size && worse(values, heap[child + 1]!, heap[child]!)) child++;
    if (!worse(values, heap[child]!, id)) break;
    heap[i] = heap[child]!;
    i = child;
  }
  heap[i] = id;
}

function worse(values: Float32Array, a: number, b: number): boolean {
  return values[a]! < values[b]! || (values[a] === values[b] && a > b);
}

/** Sorts by packing value and id into doubles, which sort natively without a callback: largest value first, then id. */
function sortedIds(values: Float32Array, keys: Float64Array, ids: Int32Array): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let id = 0; id < values.length; id++) {
    // A float's bits order like integers once negative ones are flipped; -0 is 0.
    const b = values[id] === 0 ? 0 : bits[id]!;
    const ascending = b >= 0x80000000 ? 0xffffffff - b : b + 0x80000000;
    keys[id] = (0xffffffff - ascending) * ID_LIMIT + id;
  }
  keys.sort();
  for (let i = 0; i < ids.length; i++) ids[i] = keys[i]! % ID_LIMIT;
}
