import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createGrid } from './pack.ts';

const orders = (bits: number) => ['rows', 'columns', ...(bits === 2 ? ['pairs' as const] : [])] as const;

it.each(Array.from({ length: 16 }, (_, i) => i + 1))('codes of %i bits come back, in any order', bits => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 40 }), fc.nat(), (tokens, dims, salt) => {
      for (const order of orders(bits)) {
        const grid = createGrid(tokens, dims, bits, order);
        const code = (t: number, i: number) => (Math.imul(t * 71 + i * 13 + salt, 2654435761) >>> 8) & (2 ** bits - 1);
        const bytes = new Uint8Array(grid.bytes);
        for (let t = 0; t < tokens; t++) for (let i = 0; i < dims; i++) grid.write(bytes, t, i, code(t, i));
        for (let t = 0; t < tokens; t++) {
          for (let i = 0; i < dims; i++) expect(grid.read(bytes, t, i)).toBe(code(t, i));
        }
      }
    }),
    { numRuns: 20 },
  );
});

it('puts neighbours side by side in a block of bytes, the first of them into the low bits', () => {
  const grid = createGrid(1, 32, 4, 'rows');
  const bytes = new Uint8Array(16);
  for (let i = 0; i < 32; i++) grid.write(bytes, 0, i, i % 16);
  // Byte i holds codes i and 16 + i.
  expect([...bytes]).toEqual(Array.from({ length: 16 }, (_, i) => i * 0x11));
});

it('lays one dim of all tokens side by side in columns', () => {
  const grid = createGrid(8, 2, 2, 'columns');
  const bytes = new Uint8Array(4);
  for (let t = 0; t < 8; t++) {
    grid.write(bytes, t, 0, t % 4);
    grid.write(bytes, t, 1, 3);
  }
  // Two bytes a column: tokens 0, 2, 4, 6 in the first, 1, 3, 5, 7 in the second.
  expect([...bytes]).toEqual([0b10001000, 0b11011101, 0xff, 0xff]);
});

it('keeps two dims of a token in a nibble in pairs', () => {
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
