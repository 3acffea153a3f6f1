/**
 * Packs and unpacks grids of codes. codec/pack.ts defines the packed layout; unpacked, a grid is a tile [token][dim]
 * with one byte per code, or two for codes of more than 8 bits.
 */
import type { CodeGrid } from '../page-layout.ts';
import { type I32, i8x16, i16x8, i32, index, type Local, type V128, v128 } from './emit.ts';
import type { Kernel } from './module.ts';

export interface GridShape extends CodeGrid {
  tokens: number;
  dims: number;
}

/** Codes of more than one power of two of bits are stored in planes of fewer bits. */
export interface Plane {
  width: number;
  /** Position of its bits in a code. */
  shift: number;
  /** Offset of its first byte in the head's block. */
  offset: number;
}

/** A grid of pairs is stored as nibbles over half as many dims. */
export function planesOf({ bits, order, tokens, dims, offset }: GridShape): Plane[] {
  if (order === 'pairs') return [{ width: 4, shift: 0, offset }];
  let planeOffset = offset;
  let shift = 0;
  return [16, 8, 4, 2, 1]
    .filter(width => bits & width)
    .map(width => {
      const plane = { width, shift, offset: planeOffset };
      planeOffset += Math.ceil((tokens * dims * width) / 8);
      shift += width;
      return plane;
    });
}

/** Visits every byte of a plane in order (every two for 16 bits): its address, and which codes start at which bit. */
function forEachByte(
  k: Kernel,
  grid: GridShape,
  { width, offset }: Plane,
  block: I32,
  visit: (address: Local<'i32'>, codes: { token: I32; dim: I32; bit: number }[]) => void,
): void {
  const byRows = grid.order === 'rows';
  const dims = grid.order === 'pairs' ? grid.dims / 2 : grid.dims;
  const [lines, length] = byRows ? [grid.tokens, dims] : [dims, grid.tokens];
  const lineBytes = (length * width) / 8;
  const blockBytes = Math.min(16, lineBytes & -lineBytes);
  const perByte = 8 / width;
  const unit = Math.max(1, width / 8);
  const address = k.i32(i32.add(block, offset));
  const visitBlock = (line: I32, first: I32) =>
    k.for(0, blockBytes / unit, 1, i => {
      visit(
        address,
        Array.from({ length: Math.ceil(perByte) }, (_, n) => {
          const index = i32.add(i32.add(first, i), n * blockBytes);
          return byRows ? { token: line, dim: index, bit: n * width } : { token: index, dim: line, bit: n * width };
        }),
      );
      k.increment(address, unit);
    });
  const blocks = (body: (first: I32) => void) => k.for(0, length, blockBytes * perByte, body);
  // Codes below 8 bits are stored in strips; in row order, each strip holds tokens 0, 4, 8, ..., then 1, 5, 9, ...
  if (width >= 8) k.for(0, lines, 1, line => blocks(first => visitBlock(line, first)));
  else if (!byRows) blocks(first => k.for(0, lines, 1, line => visitBlock(line, first)));
  else blocks(first => k.for(0, 4, 1, n => k.for(n, lines, 4, line => visitBlock(line, first))));
}

/** How a code is stored in a tile. */
const codeAccess = ({ bits }: CodeGrid) =>
  bits > 8 ? { bytes: 2, load: i32.load16U, store: i32.store16 } : { bytes: 1, load: i32.load8U, store: i32.store8 };

const tileAddress = (grid: GridShape, tile: I32) => (token: I32, dim: I32) =>
  index(tile, codeAccess(grid).bytes, token, [grid.dims, dim]);

/** Unpacks 16 bytes at a time where lines are whole vectors. */
export function unpackGrid(k: Kernel, grid: GridShape, block: I32, tile: I32): void {
  const code = codeAccess(grid);
  const addressOf = tileAddress(grid, tile);
  for (const plane of planesOf(grid)) {
    if (isWholeVectors(grid, plane)) {
      (grid.order === 'rows' ? unpackRows : unpackColumns)(k, grid, plane, block, tile);
      continue;
    }
    const byte = k.i32();
    const to = k.i32();
    forEachByte(k, grid, plane, block, (address, codes) => {
      k.set(byte, plane.width === 16 ? i32.load16U(address) : i32.load8U(address));
      for (const { token, dim, bit } of codes) {
        const value = i32.and(i32.shrU(byte, bit), 2 ** plane.width - 1);
        if (grid.order === 'pairs') {
          k.set(to, addressOf(token, i32.mul(dim, 2)));
          k.do(i32.store8(to, i32.and(value, 3)), i32.store8(to, i32.shrU(value, 2), 1));
        } else if (plane.shift === 0) k.do(code.store(addressOf(token, dim), value));
        else {
          k.set(to, addressOf(token, dim));
          k.do(code.store(to, i32.or(code.load(to), i32.shl(value, plane.shift))));
        }
      }
    });
  }
}

/** Whether the lines of a plane, and the rows of the tile, are vectors of 16 bytes. */
const isWholeVectors = ({ bits, order, tokens, dims }: GridShape, { width }: Plane): boolean =>
  bits <= 8 &&
  width < 8 &&
  order !== 'pairs' &&
  ((order === 'rows' ? dims : tokens) * width) % 128 === 0 &&
  dims % 16 === 0;

/** Codes of a plane from the byte at `bit`, moved to their place in a code. */
const planeCodes = ({ width, shift }: Plane, raw: V128, bit: I32): V128 => {
  const codes = v128.and(i16x8.shrU(raw, bit), i8x16.const(2 ** width - 1));
  return shift === 0 ? codes : i16x8.shl(codes, shift);
};

/** Writes 16 codes to the tile; planes after the first add their bits. */
const storeCodes = (k: Kernel, { shift }: Plane, to: I32, codes: V128, offset = 0) =>
  k.do(v128.store(to, shift === 0 ? codes : v128.or(v128.load(to, offset), codes), offset));

function unpackRows(k: Kernel, { tokens, dims }: GridShape, plane: Plane, block: I32, tile: I32): void {
  const from = k.i32(i32.add(block, plane.offset));
  const to = k.i32();
  const raw = k.v128();
  k.for(0, dims, 128 / plane.width, first =>
    k.for(0, 4, 1, n =>
      k.for(n, tokens, 4, token => {
        k.set(raw, v128.load(from));
        k.set(to, index(i32.add(tile, first), dims, token));
        for (let bit = 0; bit < 8; bit += plane.width)
          storeCodes(k, plane, to, planeCodes(plane, raw, bit), (16 * bit) / plane.width);
        k.increment(from, 16);
      }),
    ),
  );
}

/** Transposes 16 columns at a time. */
function unpackColumns(k: Kernel, { tokens, dims }: GridShape, plane: Plane, block: I32, tile: I32): void {
  const from = k.i32(i32.add(block, plane.offset));
  const [to, bit] = [k.i32(), k.i32()];
  k.for(0, tokens, 128 / plane.width, first =>
    k.for(0, dims, 16, dim => {
      k.set(to, index(i32.add(tile, dim), dims, first));
      k.set(bit, 0);
      k.while(i32.ltS(bit, 8), () => {
        const columns = Array.from({ length: 16 }, (_, d) => k.v128(planeCodes(plane, v128.load(from, 16 * d), bit)));
        for (const [t, codes] of transpose16x16(k, columns).entries()) storeCodes(k, plane, to, codes, t * dims);
        k.increment(to, 16 * dims);
        k.increment(bit, plane.width);
      });
      k.increment(from, 256);
    }),
  );
}

/** Byte i of vector j becomes byte j of vector i: each round interleaves the first eight vectors with the others. */
function transpose16x16(k: Kernel, vectors: readonly V128[]): readonly V128[] {
  const interleave = (from: number) => Array.from({ length: 8 }, (_, i) => [from + i, from + i + 16]).flat();
  let lines = vectors;
  for (let round = 0; round < 4; round++) {
    const before = lines;
    lines = before
      .slice(8)
      .flatMap((line, j) => [0, 8].map(from => k.v128(v128.shuffle(before[j], line, interleave(from)))));
  }
  return lines;
}

export function packGrid(k: Kernel, grid: GridShape, tile: I32, block: I32): void {
  const code = codeAccess(grid);
  const addressOf = tileAddress(grid, tile);
  for (const plane of planesOf(grid)) {
    const byte = k.i32();
    forEachByte(k, grid, plane, block, (address, codes) => {
      k.set(byte, 0);
      for (const { token, dim, bit } of codes) {
        const value =
          grid.order === 'pairs'
            ? i32.or(
                i32.load8U(addressOf(token, i32.mul(dim, 2))),
                i32.shl(i32.load8U(addressOf(token, i32.mul(dim, 2)), 1), 2),
              )
            : i32.and(i32.shrU(code.load(addressOf(token, dim)), plane.shift), 2 ** plane.width - 1);
        k.set(byte, i32.or(byte, i32.shl(value, bit)));
      }
      k.do(plane.width === 16 ? i32.store16(address, byte) : i32.store8(address, byte));
    });
  }
}
