/**
 * Codes to bytes: a grid of b-bit codes (1 to 16), tokens by dims, laid out for the loops that read it.
 *
 *   rows      a line is a token's codes
 *   columns   a line is one dim's codes of all tokens
 *   pairs     columns of nibbles, each the 2-bit codes of two neighbouring dims of a token (the even dim lower): one
 *             16-entry table then serves two dims
 *
 * A line of narrow codes is cut into blocks of L bytes (16, or the largest power of two below it that
 * divides the line). In a block, byte i holds codes i, L + i, 2 L + i, ... of the block, lowest bits first: one mask
 * on 16 bytes gives 16 neighbours in order, and one mask on a word gives four.
 *
 * Blocks lie strip by strip: block 0 of every line, then block 1 of every line, and so on. On a GPU lanes side by side
 * own lines side by side and read a block at a time, which then lie side by side in memory, too. The tokens of a strip
 * of rows are dealt by fours (`placeOf`).
 *
 * Codes of 8 bits and more, and lines that are not whole bytes, have no strips: line follows line. A plane of 16 bits
 * has the low byte first.
 *
 * A width that does not divide 8 is split into planes that do, the plane of the low bits first: 3 bits are a grid of
 * 2 bits followed by a grid of 1 bit.
 */
export type Order = 'rows' | 'columns' | 'pairs';

export interface Grid {
  bytes: number;
  bits: number;
  order: Order;
  /** Sets a code whose bits are still zero. */
  write(bytes: Uint8Array, token: number, dim: number, code: number): void;
  read(bytes: Uint8Array, token: number, dim: number): number;
}

export function createGrid(tokens: number, dims: number, bits: number, order: Order): Grid {
  if (order === 'pairs') return pairGrid(tokens, dims);
  const byRows = order === 'rows';
  const [lines, length] = byRows ? [tokens, dims] : [dims, tokens];
  let bytes = 0;
  let shift = 0;
  const planes = [16, 8, 4, 2, 1]
    .filter(power => bits & power)
    .map(width => {
      const plane = { ...createPlane(lines, length, width, byRows), width, mask: 2 ** width - 1, offset: bytes, shift };
      bytes += Math.ceil((lines * length * width) / 8);
      shift += width;
      return plane;
    });
  return {
    bytes,
    bits,
    order,
    write(out, token, dim, code) {
      const [line, i] = byRows ? [token, dim] : [dim, token];
      for (const { width, mask, offset, shift, bitOf } of planes) {
        const bit = bitOf(line, i);
        const at = offset + (bit >> 3);
        const value = ((code >> shift) & mask) << (bit & 7);
        out[at] |= value;
        if (width === 16) out[at + 1] |= value >> 8;
      }
    },
    read(from, token, dim) {
      const [line, i] = byRows ? [token, dim] : [dim, token];
      let code = 0;
      for (const { width, mask, offset, shift, bitOf } of planes) {
        const bit = bitOf(line, i);
        const at = offset + (bit >> 3);
        const value = width === 16 ? from[at] | (from[at + 1] << 8) : (from[at] >> (bit & 7)) & mask;
        code |= value << shift;
      }
      return code;
    },
  };
}

/** Where code i of a line begins, in bits from the start of the plane. */
function createPlane(
  lines: number,
  length: number,
  width: number,
  byRows: boolean,
): { bitOf(line: number, i: number): number } {
  const lineBits = length * width;
  if (lineBits % 8 !== 0 || width >= 8) return { bitOf: (line, i) => line * lineBits + i * width };
  const lane = laneBytes(lineBits / 8);
  const block = (lane * 8) / width;
  return {
    bitOf(line, i) {
      const place = byRows ? placeOf(line, lines) : line;
      const within = i % block;
      const byte = (Math.floor(i / block) * lines + place) * lane + (within % lane);
      return 8 * byte + Math.floor(within / lane) * width;
    },
  };
}

/**
 * Where a token's block lies in a strip of rows: tokens 0, 4, 8, ... first, then 1, 5, 9, ..., and so on. A lane that owns
 * four neighbours reads the first of them beside the first of the next lane, then the second, and so on. Tokens that are
 * not whole fours lie in order.
 */
const placeOf = (token: number, tokens: number): number =>
  tokens % 4 === 0 ? (token % 4) * (tokens / 4) + Math.floor(token / 4) : token;

/** L: 16, or the largest power of two that divides a line of this many bytes. */
export const laneBytes = (lineBytes: number): number => Math.min(16, lineBytes & -lineBytes);

function pairGrid(tokens: number, dims: number): Grid {
  const nibbles = createGrid(tokens, Math.ceil(dims / 2), 4, 'columns');
  return {
    bytes: nibbles.bytes,
    bits: 2,
    order: 'pairs',
    write: (out, token, dim, code) => nibbles.write(out, token, dim >> 1, code << (2 * (dim & 1))),
    read: (from, token, dim) => (nibbles.read(from, token, dim >> 1) >> (2 * (dim & 1))) & 3,
  };
}
