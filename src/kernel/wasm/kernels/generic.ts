/** Keys and values of any codec: the page is unpacked to floats once, then read like rows of floats. */
import type { Fragment } from '../../fragment.ts';
import { f32, f32x4, type I32, i32, v128 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import type { AttendShape, KeyFragment, ValueFragment } from './attend.ts';
import { applyMatrix, dotMean, matrixAt, turnBack } from './domain.ts';
import { scoreRows, sumScored } from './rows.ts';
import type { Tables } from './unpack.ts';

/** Where a thread keeps a page's codes and floats. */
export interface Tile {
  codes(): I32;
  floats(): I32;
}

/** What many rows at a time need of the keys beside: a row's queries as they meet a page, and what to add to scores. */
export interface GenericKeys extends KeyFragment {
  codedDim: number;
  /** The opened page, [token][codedDim]. */
  floats(): I32;
  /** Whether anything is added to scores. */
  constants: boolean;
  /** Puts them at `queries`, [group][codedDim], and one number a query at `constants`. */
  gather(k: Kernel, head: I32, query: I32, turn: I32, queries: I32, constants: I32): void;
}

export interface GenericValues extends ValueFragment {
  floats(): I32;
}

/**
 * f32 queries in the codec's domain, then what the mean adds to every score of a head. Where keys are relative to their
 * page, queries stay as they are until a page is scored: turned to its start, they go into the domain in `turned`.
 */
export function genericKeys(
  fragment: Fragment,
  shape: AttendShape,
  tables: Tables,
  unpack: number,
  tile: Tile,
  turned: () => I32,
): GenericKeys {
  const { codedDim } = fragment;
  const { headDim, group, pageTokens, relaxed } = shape;
  const constants = 4 * group * codedDim;
  const rows = { size: 4, dims: codedDim, heads: group, relaxed } as const;
  const intoDomain = (k: Kernel, queries: I32, head: I32, out: I32) => {
    const one = k.v128(f32x4.const(1));
    const to = k.i32(out);
    const matrix = fragment.matrix && k.i32(matrixAt(fragment, fragment.matrix, tables.matrix!, headDim, head));
    for (let g = 0; g < group; g++) {
      const query = k.i32(i32.add(queries, 4 * headDim * g));
      applyMatrix(k, matrix, codedDim, headDim, query, one, i32.add(to, 4 * codedDim * g), fragment.blocks);
      const constant = tables.mean === undefined ? f32.const(0) : dotMean(k, tables.mean, head, headDim, query);
      k.do(f32.store(to, constant, constants + 4 * g));
    }
  };
  const queryBytes = constants + 16 * Math.ceil(group / 4);
  /** A row's prepared queries; those that turn with the page, after their turn. */
  const meet = (k: Kernel, head: I32, query: I32, turn: I32): I32 => {
    if (!fragment.turn) return query;
    const plain = k.i32(i32.add(turned(), queryBytes));
    for (let g = 0; g < group; g++) {
      turnBack(k, headDim, turn, i32.add(query, 4 * headDim * g), i32.add(plain, 4 * headDim * g));
    }
    const prepared = k.i32(turned());
    intoDomain(k, plain, head, prepared);
    return prepared;
  };
  return {
    codedDim,
    floats: tile.floats,
    constants: tables.mean !== undefined,
    queryBytes: fragment.turn ? 4 * group * headDim : queryBytes,
    prepare(k, queries, head, out) {
      if (!fragment.turn) intoDomain(k, queries, head, out);
      else {
        const to = k.i32(out);
        k.for(0, 4 * group * headDim, 16, i => k.do(v128.store(i32.add(to, i), v128.load(i32.add(queries, i)))));
      }
    },
    open: (k, page, head) => k.call(unpack, page, head, tile.codes(), tile.floats()),
    scores(k, _page, head, query, scores, turn) {
      const prepared = meet(k, head, query, turn);
      scoreRows(k, rows, tile.floats(), prepared, pageTokens, scores, pageTokens);
      if (tables.mean !== undefined) addConstants(k, prepared, constants, group, scores, pageTokens);
    },
    gather(k, head, query, turn, queries, out) {
      const [from, to, sums] = [k.i32(meet(k, head, query, turn)), k.i32(queries), k.i32(out)];
      k.for(0, constants, 16, i => k.do(v128.store(i32.add(to, i), v128.load(i32.add(from, i)))));
      for (let g = 0; g < group; g++) k.do(f32.store(sums, f32.load(from, constants + 4 * g), 4 * g));
    },
  };
}

/** Room for a group's queries turned to a page's start: in the domain, and before it. */
export const turnedBytes = ({ codedDim, turn }: Fragment, { group, headDim }: AttendShape): number =>
  turn ? 4 * group * (codedDim + headDim + 4) : 0;

export function addConstants(k: Kernel, query: I32, at: number, group: number, scores: I32, pageTokens: number): void {
  for (let g = 0; g < group; g++) {
    const constant = k.v128(v128.load32Splat(query, at + 4 * g));
    const from = k.i32(i32.add(scores, 4 * g * pageTokens));
    k.for(0, 4 * pageTokens, 16, i => {
      k.do(v128.store(i32.add(from, i), f32x4.add(v128.load(i32.add(from, i)), constant)));
    });
  }
}

export function genericValues(fragment: Fragment, shape: AttendShape, unpack: number, tile: Tile): GenericValues {
  const { codedDim } = fragment;
  const { group, pageTokens, relaxed } = shape;
  const rows = { size: 4, dims: codedDim, heads: group, relaxed } as const;
  return {
    codedDim,
    floats: tile.floats,
    open: (k, page, head) => k.call(unpack, page, head, tile.codes(), tile.floats()),
    sum(k, _page, _head, scores, state) {
      sumScored(k, rows, tile.floats(), scores, pageTokens, pageTokens, pageTokens, state);
    },
  };
}
