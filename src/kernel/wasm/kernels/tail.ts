/** The f16 tail that a page is sealed from: blocks of one layer's keys or values, [kv head][tokens][headDim]. */
import { tailBlockTokens } from '../../visibility.ts';
import { type I32, i32, index } from '../emit.ts';

export interface Tail {
  /** Address of a table of the blocks' addresses. */
  table: I32;
  tailTokens: I32;
  /** Index of the page's first token in the tail. */
  pageStart: I32;
  /** Rows of the page before this one are encoded as copies of it; see kernel/visibility.ts. */
  firstCodedRow: I32;
}

/** Address of the vector that is encoded as row t of the page. */
export function tailVector(
  { table, tailTokens, pageStart, firstCodedRow }: Tail,
  { headDim, pageTokens }: { headDim: number; pageTokens: number },
  head: I32,
  t: I32,
): I32 {
  const coded = i32.select(i32.ltS(t, firstCodedRow), firstCodedRow, t);
  const token = i32.remU(i32.add(pageStart, coded), tailTokens);
  const blockTokens = tailBlockTokens(pageTokens);
  const block = i32.load(index(table, 4, i32.divU(token, blockTokens)));
  const row = i32.add(i32.mul(head, blockTokens), i32.remU(token, blockTokens));
  return index(block, 2 * headDim, row);
}
