import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createGrid } from './pack.ts';

const orders = (bits: number) => ['rows', 'columns', ...(bits === 2 ? ['pairs' as const] : [])] as const;

it.each(Array.from({ length: 16 }, (_, i) => i + 1))('codes of %i bits round-trip in every grid order', bits => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 40 }), fc.nat(), (tokens, dims, salt) => {
      for (const order of orders(bits)) {
        const grid = createGrid(tokens, dims, bits, order);
        const codes = Float64Array.from(
          { length: tokens * dims },
          (_, n) => (Math.imul(Math.floor(n / dims) * 71 + (n % dims) * 13 + salt, 2654435761) >>> 8) & (2 ** bits - 1),
        );
        const bytes = new Uint8Array(grid.bytes);
        codes.forEach((code, n) => {
          grid.write(bytes, Math.floor(n / dims), n % dims, code);
        });
        expect(codes.map((_, n) => grid.read(bytes, Math.floor(n / dims), n % dims))).toEqual(codes);
      }
    }),
    { numRuns: 20 },
  );
});

it('stores neighbouring codes in neighbouring bytes of a block, the first half in the low bits', () => {
  const grid = createGrid(1, 32, 4, 'rows');
  const bytes = new Uint8Array(16);
  for (let i = 0; i < 32; i++) grid.write(bytes, 0, i, i % 16);
  // Byte i holds codes i and 16 + i.
  expect([...bytes]).toEqual(Array.from({ length: 16 }, (_, i) => i * 0x11));
});

it('stores one dim of all tokens contiguously in columns', () => {
  const grid = createGrid(8, 2, 2, 'columns');
  const bytes = new Uint8Array(4);
  for (let t = 0; t < 8; t++) {
    grid.write(bytes, t, 0, t % 4);
    grid.write(bytes, t, 1, 3);
  }
  // Two bytes per column: tokens 0, 2, 4, 6 in the first, 1, 3, 5, 7 in the second.
  expect([...bytes]).toEqual([0b10001000, 0b11011101, 0xff, 0xff]);
});

describe.each([
  // Blocks of 16 bytes, of fewer bytes, and of the two planes of 3 bits.
  { bits: 4, tokens: 128, dims: 128 },
  { bits: 2, tokens: 64, dims: 96 },
  { bits: 1, tokens: 16, dims: 24 },
  { bits: 4, tokens: 12, dims: 10 },
  { bits: 3, tokens: 32, dims: 64 },
])('strips of $dims dims, $tokens tokens, $bits bits', ({ bits, tokens, dims }) => {
  /** All codes of a line, read from the bytes where the format puts them. */
  function readLine(bytes: Uint8Array, lines: number, length: number, position: number): number[] {
    const codes = Array<number>(length).fill(0);
    let [plane, shift] = [0, 0];
    for (const width of [4, 2, 1].filter(w => bits & w)) {
      const lineBytes = (length * width) / 8;
      const blockBytes = [16, 8, 4, 2, 1].find(power => lineBytes % power === 0)!;
      for (let i = 0; i < length; i++) {
        const block = Math.floor((i * width) / (8 * blockBytes));
        const within = i - (block * 8 * blockBytes) / width;
        const byte = bytes[plane + (block * lines + position) * blockBytes + (within % blockBytes)];
        codes[i] |= ((byte >> (width * Math.floor(within / blockBytes))) & (2 ** width - 1)) << shift;
      }
      plane += lines * lineBytes;
      shift += width;
    }
    return codes;
  }

  const code = (t: number, i: number) => (Math.imul(t * 71 + i * 13, 2654435761) >>> 8) & (2 ** bits - 1);
  const filled = (order: 'rows' | 'columns') => {
    const grid = createGrid(tokens, dims, bits, order);
    const bytes = new Uint8Array(grid.bytes);
    for (let t = 0; t < tokens; t++) for (let i = 0; i < dims; i++) grid.write(bytes, t, i, code(t, i));
    return bytes;
  };

  it('interleave the blocks of all columns', () => {
    const bytes = filled('columns');
    for (let dim = 0; dim < dims; dim++)
      expect(readLine(bytes, dims, tokens, dim)).toEqual(Array.from({ length: tokens }, (_, t) => code(t, dim)));
  });

  it('interleave the blocks of all rows, with every fourth token in sequence', () => {
    const bytes = filled('rows');
    for (let t = 0; t < tokens; t++)
      expect(readLine(bytes, tokens, dims, (t % 4) * (tokens / 4) + Math.floor(t / 4))).toEqual(
        Array.from({ length: dims }, (_, i) => code(t, i)),
      );
  });
});

it('keeps rows in order if their number is not a multiple of four', () => {
  const grid = createGrid(3, 64, 4, 'rows');
  const bytes = new Uint8Array(grid.bytes);
  grid.write(bytes, 1, 0, 1);
  grid.write(bytes, 2, 32, 2);
  expect([bytes.indexOf(1), bytes.indexOf(2)]).toEqual([16, (3 + 2) * 16]);
});

it('does not interleave codes of 8 bits', () => {
  const grid = createGrid(4, 64, 8, 'rows');
  const bytes = new Uint8Array(grid.bytes);
  grid.write(bytes, 1, 32, 1);
  expect(bytes.indexOf(1)).toBe(64 + 32);
});

it('stores two dims of a token in one nibble in pairs', () => {
  const grid = createGrid(32, 2, 2, 'pairs');
  const bytes = new Uint8Array(grid.bytes);
  grid.write(bytes, 0, 0, 1);
  grid.write(bytes, 0, 1, 2);
  grid.write(bytes, 16, 1, 3);
  expect([...bytes]).toEqual([0b11001001, ...Array(15).fill(0)]);
});

it('splits 3 bits into a plane of the low two and a plane of the high one', () => {
  const grid = createGrid(1, 8, 3, 'rows');
  const bytes = new Uint8Array(3);
  [0, 1, 2, 3, 4, 5, 6, 7].forEach(i => {
    grid.write(bytes, 0, i, i);
  });
  expect([...bytes]).toEqual([0b10001000, 0b11011101, 0b11110000]);
});
