import { expect, it } from 'vitest';
import { createCodec, learn } from '../codec/kv.ts';
import { gaussianSamples } from '../codec/learned.ts';
import { isValidLeaf, leafLayout } from './leaf.ts';

const shape = { headDim: 64, kvHeads: 2 };

it('a leaf of unknown origin is valid if the lists of all its pages are', () => {
  const samples = gaussianSamples(shape, 512);
  const oaken = createCodec('oaken', shape, learn('oaken', shape, { key: samples, value: samples }));
  const layout = leafLayout([createCodec('tq4', shape), oaken]);
  const leaf = new Uint8Array(layout.bytes);
  expect(isValidLeaf(layout, leaf)).toBe(true);
  const { keyOffset, valueOffset } = layout.layers[1];
  leaf.fill(255, 0, keyOffset);
  expect(isValidLeaf(layout, leaf)).toBe(true);
  for (const offset of [keyOffset, valueOffset]) {
    const damaged = leaf.slice().fill(255, offset, offset + oaken.keys.pageBytes);
    expect(isValidLeaf(layout, damaged)).toBe(false);
  }
});
