/** The f16 tail that a page is sealed from: one layer's keys or values, [kv head][tailTokens][headDim]. */
import { type I32, i32 } from '../emit.ts';

export interface Tail {
  address: I32;
  tailTokens: I32;
  /** Index of the page's first token in the tail. */
  pageStart: I32;
  /** Rows of the page before this one are encoded as copies of it; see kernel/visibility.ts. */
  firstCodedRow: I32;
}

/** Address of the vector that is encoded as row t of the page. */
export function tailVector(
  { address, tailTokens, pageStart, firstCodedRow }: Tail,
  headDim: number,
  head: I32,
  t: I32,
): I32 {
  const row = i32.select(i32.ltS(t, firstCodedRow), firstCodedRow, t);
  const token = i32.remU(i32.add(pageStart, row), tailTokens);
  return i32.add(address, i32.mul(i32.add(i32.mul(head, tailTokens), token), 2 * headDim));
}
