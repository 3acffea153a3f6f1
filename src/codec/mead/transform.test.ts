import { expect, it } from 'vitest';
import type { Shape } from '../codec.ts';
import { createRopeFrequencies } from '../parts/rope.ts';
import { transformBlocks } from './transform.ts';

const rope = (headDim: number, base: number): Shape => ({
  headDim,
  kvHeads: 1,
  pageTokens: 128,
  ropeFrequencies: createRopeFrequencies(headDim, base),
});

it('keys: blocks of 8 dims for fast pairs, one block for all slow ones', () => {
  expect(transformBlocks('key', rope(64, 100_000))).toEqual([8, 8, 8, 40]);
  expect(transformBlocks('key', rope(128, 10_000))).toEqual([...Array(8).fill(8), 64]);
  expect(transformBlocks('key', rope(80, 1_000_000)).reduce((sum, size) => sum + size)).toBe(80);
});

it('one kind of block if no pair is fast, or all are', () => {
  expect(transformBlocks('value', rope(64, 100_000))).toEqual([64]);
  expect(transformBlocks('key', { ...rope(64, 1), ropeFrequencies: undefined })).toEqual([64]);
  expect(transformBlocks('key', rope(64, 1))).toEqual(Array(8).fill(8));
});
