import { expect, it } from 'vitest';
import type { Shape } from '../codec.ts';
import { blocksOf } from './transform.ts';

const rope = (headDim: number, base: number): Shape => ({
  headDim,
  kvHeads: 1,
  pageTokens: 128,
  turn: Float64Array.from({ length: headDim / 2 }, (_, pair) => base ** ((-2 * pair) / headDim)),
});

it('fast pairs of keys are mixed in blocks of 8 dims, all slow ones together', () => {
  expect(blocksOf('key', rope(64, 100_000))).toEqual([8, 8, 8, 40]);
  expect(blocksOf('key', rope(128, 10_000))).toEqual([...Array(8).fill(8), 64]);
  expect(blocksOf('key', rope(80, 1_000_000)).reduce((sum, size) => sum + size)).toBe(80);
});

it('where nothing turns fast, or everything does, there is one kind of block', () => {
  expect(blocksOf('value', rope(64, 100_000))).toEqual([64]);
  expect(blocksOf('key', { ...rope(64, 1), turn: undefined })).toEqual([64]);
  expect(blocksOf('key', rope(64, 1))).toEqual(Array(8).fill(8));
});
