/** Keys and values of any codec: the page is unpacked to floats once, then read like rows of floats. */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i32, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import type { AttendShape, KeyFragment, ValueFragment } from './attend.ts';
import { applyMatrix, dotMean } from './domain.ts';
import { scoreRows, sumScored } from './rows.ts';
import type { Tables } from './unpack.ts';

/** Where a thread keeps a page's codes and floats. */
export interface Tile {
  codes(): I32;
  floats(): I32;
}

/** f32 queries in the codec's domain, then what the mean adds to every score of a head. */
export function genericKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  unpack: number,
  tile: Tile,
): KeyFragment {
  const { codedDim } = fragment;
  const { headDim, group, pageTokens, relaxed } = shape;
  const constants = 4 * group * codedDim;
  const rows = { size: 4, dims: codedDim, heads: group, relaxed } as const;
  return {
    queryBytes: constants + 16 * Math.ceil(group / 4),
    prepare(k, queries, head, out) {
      const one = k.v128(f32x4.const(1));
      const to = k.i32(out);
      for (let g = 0; g < group; g++) {
        const query = k.i32(i32.add(queries, 4 * headDim * g));
        applyMatrix(k, tables.matrix, codedDim, headDim, query, one, i32.add(to, 4 * codedDim * g));
        const constant = tables.mean === undefined ? f32.const(0) : dotMean(k, tables.mean, head, headDim, query);
        k.do(f32.store(to, constant, constants + 4 * g));
      }
    },
    open: (k, page, head) => k.call(unpack, page, head, tile.codes(), tile.floats()),
    scores(k, _page, _head, query, scores) {
      scoreRows(k, rows, tile.floats(), query, pageTokens, scores, pageTokens);
      if (tables.mean !== undefined) addConstants(k, query, constants, group, scores, pageTokens);
    },
  };
}

export function addConstants(k: Kernel, query: I32, at: number, group: number, scores: I32, pageTokens: number): void {
  for (let g = 0; g < group; g++) {
    const constant = k.v128(v128.load32Splat(query, at + 4 * g));
    const from = k.i32(i32.add(scores, 4 * g * pageTokens));
    k.for(0, 4 * pageTokens, 16, i => {
      k.do(v128.store(i32.add(from, i), f32x4.add(v128.load(i32.add(from, i)), constant)));
    });
  }
}

export function genericValues(fragment: Fragment, shape: AttendShape, unpack: number, tile: Tile): ValueFragment {
  const { codedDim } = fragment;
  const { group, pageTokens, relaxed } = shape;
  const rows = { size: 4, dims: codedDim, heads: group, relaxed } as const;
  return {
    codedDim,
    open: (k, page, head) => k.call(unpack, page, head, tile.codes(), tile.floats()),
    sum(k, _page, _head, scores, state) {
      sumScored(k, rows, tile.floats(), scores, pageTokens, pageTokens, pageTokens, state);
    },
  };
}
