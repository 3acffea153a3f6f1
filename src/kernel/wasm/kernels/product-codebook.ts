/** Product quantization: each subvector is an entry of a codebook. */
import type { PageEncoding } from '../../page-layout.ts';
import { packGrid, unpackGrid } from '../code-grid.ts';
import { type F32, f32, f32x4, type I32, i32, i32x4, index, v128 } from '../emit.ts';
import type { DequantizeContext, SealContext } from './head-context.ts';

type CodebookEncoding = PageEncoding & { kind: 'book' };

/** Addresses of the books: [entry][dim], and [dim][entry] for the search. */
export interface CodebookTables {
  entries: number;
  byDim: number;
}

/** The search processes four entries at a time: a book of two is padded with entries that are far from everything. */
const searchEntries = ({ codes }: CodebookEncoding) => Math.max(4, 2 ** codes.bits);
const FAR = 1e18;
/** Above the error of every entry. */
const MAX_ERROR = 3e38;

export function uploadCodebooks(encoding: CodebookEncoding, upload: (data: Float32Array) => number): CodebookTables {
  const { subvectorDims, books, codes } = encoding;
  const [entries, width] = [2 ** codes.bits, searchEntries(encoding)];
  const byDim = new Float32Array((books.length / entries) * width).fill(FAR);
  books.forEach((value, i) => {
    const [book, entry] = [Math.floor(i / (entries * subvectorDims)), Math.floor(i / subvectorDims) % entries];
    byDim[(book * subvectorDims + (i % subvectorDims)) * width + entry] = value;
  });
  return { entries: upload(books), byDim: upload(byDim) };
}

/** The book of a head's first subvector, and the bytes from one subvector's book to the next. */
function headCodebooks(
  { bookPerSubvector }: CodebookEncoding,
  address: number,
  bookBytes: number,
  subvectors: number,
  head: I32,
) {
  return bookPerSubvector
    ? { first: index(address, subvectors * bookBytes, head), step: bookBytes }
    : { first: address, step: 0 };
}

/** Dequantizes a head's block to out[token][dim]; `codes` is scratch. */
export function dequantizeCodebook(
  { k, shape: { headDim, pageTokens }, block, head, codes, out }: DequantizeContext,
  encoding: CodebookEncoding,
  tables: CodebookTables,
): void {
  const { subvectorDims } = encoding;
  const subvectors = headDim / subvectorDims;
  unpackGrid(k, { ...encoding.codes, tokens: pageTokens, dims: subvectors }, block, codes);
  const { first, step } = headCodebooks(
    encoding,
    tables.entries,
    4 * subvectorDims * 2 ** encoding.codes.bits,
    subvectors,
    head,
  );
  const [from, to] = [k.i32(codes), k.i32(out)];
  const [start, book, entry] = [k.i32(first), k.i32(), k.i32()];
  const codeBytes = encoding.codes.bits > 8 ? 2 : 1;
  k.for(0, pageTokens, 1, () => {
    k.set(book, start);
    k.for(0, subvectors, 1, () => {
      const code = codeBytes === 2 ? i32.load16U(from) : i32.load8U(from);
      k.set(entry, index(book, 4 * subvectorDims, code));
      for (let i = 0; i < subvectorDims; ) {
        if (i + 4 <= subvectorDims) k.do(v128.store(to, v128.load(entry, 4 * i), 4 * i));
        else k.do(f32.store(to, f32.load(entry, 4 * i), 4 * i));
        i += i + 4 <= subvectorDims ? 4 : 1;
      }
      k.increment(from, codeBytes);
      k.increment(to, 4 * subvectorDims);
      k.increment(book, step);
    });
  });
}

/**
 * Encodes vectors y [token][dim], and returns the squared error of the tokens from the first coded row on. Compares four entries
 * per iteration; ties go to the first, as in codec/.
 */
export function sealCodebook(
  { k, shape: { headDim, pageTokens }, block, head, y, codes, tail }: SealContext,
  encoding: CodebookEncoding,
  tables: CodebookTables,
): F32 {
  const { subvectorDims } = encoding;
  const subvectors = headDim / subvectorDims;
  const width = searchEntries(encoding);
  const { first, step } = headCodebooks(encoding, tables.byDim, 4 * subvectorDims * width, subvectors, head);
  const [from, to] = [k.i32(y), k.i32(codes)];
  const [start, book, at] = [k.i32(first), k.i32(), k.i32()];
  const x = Array.from({ length: subvectorDims }, () => k.v128());
  const [error, delta, minError, entry, best, closer] = Array.from({ length: 6 }, () => k.v128());
  const [code, smallest, sum] = [k.i32(), k.f32(), k.f32(f32.const(0))];
  const codeBytes = encoding.codes.bits > 8 ? 2 : 1;
  k.for(0, pageTokens, 1, t => {
    k.set(book, start);
    k.for(0, subvectors, 1, () => {
      for (const [i, value] of x.entries()) k.set(value, v128.load32Splat(from, 4 * i));
      k.set(minError, f32x4.const(MAX_ERROR));
      k.set(best, v128.zero);
      k.set(entry, i32x4.const(0, 1, 2, 3));
      k.set(at, book);
      k.for(0, width, 4, () => {
        x.forEach((value, i) => {
          k.set(delta, f32x4.sub(value, v128.load(at, 4 * width * i)));
          k.set(error, i === 0 ? f32x4.mul(delta, delta) : f32x4.add(error, f32x4.mul(delta, delta)));
        });
        k.set(closer, f32x4.gt(minError, error));
        k.set(minError, f32x4.min(minError, error));
        k.set(best, v128.xor(best, v128.and(v128.xor(best, entry), closer)));
        k.set(entry, i32x4.add(entry, i32x4.const(4)));
        k.increment(at, 16);
      });
      k.set(smallest, f32x4.lane(minError, 0));
      k.set(code, i32x4.lane(best, 0));
      for (let lane = 1; lane < 4; lane++) {
        const value = f32x4.lane(minError, lane);
        const same = i32.and(f32.eq(value, smallest), i32.ltS(i32x4.lane(best, lane), code));
        k.if(i32.or(f32.lt(value, smallest), same), () => {
          k.set(smallest, value);
          k.set(code, i32x4.lane(best, lane));
        });
      }
      k.set(sum, f32.add(sum, f32.select(i32.ltS(t, tail.firstCodedRow), f32.const(0), smallest)));
      k.do(codeBytes === 2 ? i32.store16(to, code) : i32.store8(to, code));
      k.increment(from, 4 * subvectorDims);
      k.increment(to, codeBytes);
      k.increment(book, step);
    });
  });
  packGrid(k, { ...encoding.codes, tokens: pageTokens, dims: subvectors }, codes, block);
  return sum;
}
