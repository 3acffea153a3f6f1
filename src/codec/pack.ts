/**
 * Codes to bytes: a grid of b-bit codes (1 to 16), tokens by dims, in rows (a token's codes side by side) or columns
 * (one dim's codes of all tokens side by side).
 *
 * Codes follow one another, lowest bits first, with no gap: code i of a plane of width w takes bits i w to
 * i w + w - 1 of the plane, counted from the lowest bit of its first byte. A width that does not divide 8 or 16 is
 * split into planes that do (3 = a plane of 2 + a plane of 1), the plane of the low bits first: a plane unpacks with
 * masks and shifts alone.
 */
export type Order = 'rows' | 'columns';

export interface Grid {
  bytes: number;
  bits: number;
  order: Order;
  /** Sets a code whose bits are still zero. */
  write(bytes: Uint8Array, token: number, dim: number, code: number): void;
  read(bytes: Uint8Array, token: number, dim: number): number;
}

interface Plane {
  width: number;
  mask: number;
  /** Of its first byte in the grid. */
  offset: number;
  /** Of its bits in a code. */
  shift: number;
}

export function createGrid(tokens: number, dims: number, bits: number, order: Order): Grid {
  const planes: Plane[] = [];
  let bytes = 0;
  let shift = 0;
  for (const width of [16, 8, 4, 2, 1].filter(power => bits & power)) {
    planes.push({ width, mask: 2 ** width - 1, offset: bytes, shift });
    bytes += Math.ceil((tokens * dims * width) / 8);
    shift += width;
  }
  const index = (token: number, dim: number) => (order === 'rows' ? token * dims + dim : dim * tokens + token);
  return {
    bytes,
    bits,
    order,
    write(out, token, dim, code) {
      const i = index(token, dim);
      for (const { width, mask, offset, shift } of planes) {
        const bit = i * width;
        const at = offset + (bit >> 3);
        const value = ((code >> shift) & mask) << (bit & 7);
        out[at] |= value;
        if (width === 16) out[at + 1] |= value >> 8;
      }
    },
    read(from, token, dim) {
      const i = index(token, dim);
      let code = 0;
      for (const { width, mask, offset, shift } of planes) {
        const bit = i * width;
        const at = offset + (bit >> 3);
        const value = width === 16 ? from[at] | (from[at + 1] << 8) : (from[at] >> (bit & 7)) & mask;
        code |= value << shift;
      }
      return code;
    },
  };
}
