/** The f16 tail that pages are sealed from: one layer's keys or values, [kv head][tailTokens][headDim]. */
import { type I32, i32 } from '../emit.ts';

export interface Tail {
  tail: I32;
  tailTokens: I32;
  /** Where the page's first token lies. */
  start: I32;
  /** The first row that is coded as it is; see kernel/visibility.ts. */
  first: I32;
}

/** The vector to code as row t of the page. */
export function vectorAt({ tail, tailTokens, start, first }: Tail, headDim: number, head: I32, t: I32): I32 {
  const row = i32.select(i32.ltS(t, first), first, t);
  const token = i32.remU(i32.add(start, row), tailTokens);
  return i32.add(tail, i32.mul(i32.add(i32.mul(head, tailTokens), token), 2 * headDim));
}
