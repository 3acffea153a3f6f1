import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createGrid } from './pack.ts';

const orders = ['rows', 'columns'] as const;

it.each(Array.from({ length: 16 }, (_, i) => i + 1))('codes of %i bits come back, in rows and in columns', bits => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 40 }), fc.nat(), (tokens, dims, salt) => {
      for (const order of orders) {
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

it('puts the first code into the lowest bits', () => {
  const grid = createGrid(1, 4, 4, 'rows');
  const bytes = new Uint8Array(2);
  [1, 2, 3, 4].forEach((code, i) => {
    grid.write(bytes, 0, i, code);
  });
  expect([...bytes]).toEqual([0x21, 0x43]);
});

it('lays one dim of all tokens side by side in columns', () => {
  const grid = createGrid(4, 2, 2, 'columns');
  const bytes = new Uint8Array(2);
  [0, 1, 2, 3].forEach(t => {
    grid.write(bytes, t, 0, t);
    grid.write(bytes, t, 1, 3);
  });
  expect([...bytes]).toEqual([0b11100100, 0b11111111]);
});

it('splits 3 bits into a plane of the low two and a plane of the high one', () => {
  const grid = createGrid(1, 8, 3, 'rows');
  const bytes = new Uint8Array(3);
  [0, 1, 2, 3, 4, 5, 6, 7].forEach(i => {
    grid.write(bytes, 0, i, i);
  });
  expect([...bytes]).toEqual([0b11100100, 0b11100100, 0b11110000]);
});
