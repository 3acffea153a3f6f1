/** Grids of codes (codec/pack.ts has the layout) to and from a tile, [token][dim], of a byte a code or, past 8 bits, two. */
import type { GridFragment } from '../fragment.ts';
import { type I32, i32, type Local } from './emit.ts';
import type { Kernel } from './module.ts';

interface GridShape extends GridFragment {
  tokens: number;
  dims: number;
}

interface Plane {
  width: number;
  /** Of its bits in a code. */
  shift: number;
  offset: number;
}

/** Pairs are a grid of nibbles over half as many dims. */
function planesOf({ bits, order, tokens, dims, offset }: GridShape): Plane[] {
  if (order === 'pairs') return [{ width: 4, shift: 0, offset }];
  let at = offset;
  let shift = 0;
  return [16, 8, 4, 2, 1]
    .filter(width => bits & width)
    .map(width => {
      const plane = { width, shift, offset: at };
      at += Math.ceil((tokens * dims * width) / 8);
      shift += width;
      return plane;
    });
}

/** Visits every byte of a plane (16 bits: every two) in order: its address, and which code lies at which bit of it. */
function walk(
  k: Kernel,
  grid: GridShape,
  { width, offset }: Plane,
  block: I32,
  visit: (address: Local<'i32'>, codes: { token: I32; dim: I32; at: number }[]) => void,
): void {
  const byRows = grid.order === 'rows';
  const dims = grid.order === 'pairs' ? grid.dims / 2 : grid.dims;
  const [lines, length] = byRows ? [grid.tokens, dims] : [dims, grid.tokens];
  const lineBytes = (length * width) / 8;
  const lane = Math.min(16, lineBytes & -lineBytes);
  const perByte = 8 / width;
  const unit = Math.max(1, width / 8);
  const address = k.i32(i32.add(block, offset));
  const visitBlock = (line: I32, first: I32) =>
    k.for(0, lane / unit, 1, i => {
      visit(
        address,
        Array.from({ length: Math.ceil(perByte) }, (_, n) => {
          const index = i32.add(i32.add(first, i), n * lane);
          return byRows ? { token: line, dim: index, at: n * width } : { token: index, dim: line, at: n * width };
        }),
      );
      k.increment(address, unit);
    });
  const blocks = (body: (first: I32) => void) => k.for(0, length, lane * perByte, body);
  // Narrow codes lie in strips; those of rows have their tokens dealt by fours.
  if (width >= 8) k.for(0, lines, 1, line => blocks(first => visitBlock(line, first)));
  else if (!byRows) blocks(first => k.for(0, lines, 1, line => visitBlock(line, first)));
  else blocks(first => k.for(0, 4, 1, n => k.for(n, lines, 4, line => visitBlock(line, first))));
}

/** How a tile holds a code. */
const cellOf = ({ bits }: GridFragment) =>
  bits > 8 ? { bytes: 2, load: i32.load16U, store: i32.store16 } : { bytes: 1, load: i32.load8U, store: i32.store8 };

/** From a head's block to the tile. */
export function unpackGrid(k: Kernel, grid: GridShape, block: I32, tile: I32): void {
  const cell = cellOf(grid);
  const place = ({ token, dim }: { token: I32; dim: I32 }) =>
    i32.add(tile, i32.mul(i32.add(i32.mul(token, grid.dims), dim), cell.bytes));
  for (const plane of planesOf(grid)) {
    const byte = k.i32();
    const to = k.i32();
    walk(k, grid, plane, block, (address, codes) => {
      k.set(byte, plane.width === 16 ? i32.load16U(address) : i32.load8U(address));
      for (const code of codes) {
        const value = i32.and(i32.shrU(byte, code.at), 2 ** plane.width - 1);
        if (grid.order === 'pairs') {
          k.set(to, place({ token: code.token, dim: i32.mul(code.dim, 2) }));
          k.do(i32.store8(to, i32.and(value, 3)), i32.store8(to, i32.shrU(value, 2), 1));
        } else if (plane.shift === 0) k.do(cell.store(place(code), value));
        else {
          k.set(to, place(code));
          k.do(cell.store(to, i32.or(cell.load(to), i32.shl(value, plane.shift))));
        }
      }
    });
  }
}

/** From the tile to a head's block. */
export function packGrid(k: Kernel, grid: GridShape, tile: I32, block: I32): void {
  const cell = cellOf(grid);
  const at = (token: I32, dim: I32) => i32.add(tile, i32.mul(i32.add(i32.mul(token, grid.dims), dim), cell.bytes));
  for (const plane of planesOf(grid)) {
    const byte = k.i32();
    walk(k, grid, plane, block, (address, codes) => {
      k.set(byte, 0);
      for (const { token, dim, at: bit } of codes) {
        const value =
          grid.order === 'pairs'
            ? i32.or(i32.load8U(at(token, i32.mul(dim, 2))), i32.shl(i32.load8U(at(token, i32.mul(dim, 2)), 1), 2))
            : i32.and(i32.shrU(cell.load(at(token, dim)), plane.shift), 2 ** plane.width - 1);
        k.set(byte, i32.or(byte, i32.shl(value, bit)));
      }
      k.do(plane.width === 16 ? i32.store16(address, byte) : i32.store8(address, byte));
    });
  }
}
