/**
 * Packs codes into bytes: a grid of b-bit codes (1 to 16), tokens by dims, in a layout made for SIMD and GPU loops.
 *
 *   rows      a line is the codes of one token
 *   columns   a line is the codes of one dim, for all tokens
 *   pairs     columns of nibbles, each with the 2-bit codes of two neighbouring dims of a token (the even dim in the low
 *             bits), so that one 16-entry lookup table covers two dims
 *
 * A line is divided into blocks of L bytes (16, or the largest power of two below it that divides the line). In a block,
 * byte i holds codes i, L + i, 2 L + i, ... of the block, lowest bits first: one mask on 16 bytes yields 16 neighbours in
 * order, and one mask on a word yields four.
 *
 * Blocks are interleaved: block 0 of every line (a strip), then block 1 of every line, and so on. On a GPU, neighbouring
 * lanes process neighbouring lines, one block at a time, so their loads are contiguous. In rows, a strip has its tokens
 * in groups of four (`stripPosition`).
 *
 * Codes of 8 or more bits, and lines that are not whole bytes, are not interleaved: lines follow each other. A plane of
 * 16 bits has the low byte first.
 *
 * A width that does not divide 8 is split into bit planes that do, low bits first: 3 bits are a plane of 2 bits followed
 * by a plane of 1 bit.
 */
export type GridOrder = 'rows' | 'columns' | 'pairs';

export interface Grid {
  bytes: number;
  bits: number;
  order: GridOrder;
  /** Writes a code. Its bits must be zero before. */
  write(bytes: Uint8Array, token: number, dim: number, code: number): void;
  read(bytes: Uint8Array, token: number, dim: number): number;
}

export function createGrid(tokens: number, dims: number, bits: number, order: GridOrder): Grid {
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
      for (const { width, mask, offset, shift, lineBits, codeBits } of planes) {
        const bit = lineBits[line] + codeBits[i];
        const byte = offset + (bit >> 3);
        const value = ((code >> shift) & mask) << (bit & 7);
        out[byte] |= value;
        if (width === 16) out[byte + 1] |= value >> 8;
      }
    },
    read(from, token, dim) {
      const line = byRows ? token : dim;
      const i = byRows ? dim : token;
      let code = 0;
      for (let n = 0; n < planes.length; n++) {
        const { width, mask, offset, shift, lineBits, codeBits } = planes[n];
        const bit = lineBits[line] + codeBits[i];
        const byte = offset + (bit >> 3);
        const value = width === 16 ? from[byte] | (from[byte + 1] << 8) : (from[byte] >> (bit & 7)) & mask;
        code |= value << shift;
      }
      return code;
    },
  };
}

/** Code i of a line is at `lineBits[line] + codeBits[i]`, in bits from the start of the plane. */
function createPlane(
  lines: number,
  length: number,
  width: number,
  byRows: boolean,
): { lineBits: Uint32Array; codeBits: Uint32Array } {
  const bits = length * width;
  const tables = (lineBit: (line: number) => number, codeBit: (i: number) => number) => ({
    lineBits: Uint32Array.from({ length: lines }, (_, line) => lineBit(line)),
    codeBits: Uint32Array.from({ length }, (_, i) => codeBit(i)),
  });
  if (bits % 8 !== 0 || width >= 8)
    return tables(
      line => line * bits,
      i => i * width,
    );
  const blockBytes = codeBlockBytes(bits / 8);
  const blockCodes = (blockBytes * 8) / width;
  return tables(
    line => 8 * blockBytes * (byRows ? stripPosition(line, lines) : line),
    i => {
      const within = i % blockCodes;
      const byte = Math.floor(i / blockCodes) * lines * blockBytes + (within % blockBytes);
      return 8 * byte + Math.floor(within / blockBytes) * width;
    },
  );
}

/**
 * The position of a token's block in a strip of rows: tokens 0, 4, 8, ... first, then 1, 5, 9, ..., and so on. Lanes that
 * process four neighbouring tokens each then load contiguous blocks. If the number of tokens is not a multiple of 4,
 * they are in order.
 */
const stripPosition = (token: number, tokens: number): number =>
  tokens % 4 === 0 ? (token % 4) * (tokens / 4) + Math.floor(token / 4) : token;

/** L: 16, or the largest smaller power of two that divides a line of this many bytes. */
const codeBlockBytes = (lineBytes: number): number => Math.min(16, lineBytes & -lineBytes);

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
