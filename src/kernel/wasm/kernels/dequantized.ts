/** Keys and values of any codec: the page is dequantized once, then read as rows of f32. */
import type { PageLayout } from '../../page-layout.ts';
import { f32, f32x4, type I32, i32, v128 } from '../emit.ts';
import type { Callee, Kernel } from '../module.ts';
import { mapVectors } from '../ops.ts';
import type { AttentionShape, KeyEmitter, PageArgs, ValueEmitter } from './attend.ts';
import type { CodecTables, dequantizePage } from './dequantize-page.ts';
import { contiguous, scoreRows, softmaxAndSum } from './float-rows.ts';
import { applyMatrix, dotMean, headMatrix, makePageRelative } from './transform.ts';

type DequantizeKernel = Callee<keyof ReturnType<typeof dequantizePage>['params']>;

/** Offsets in a thread's scratch of the codes and floats of a page. */
export interface PageBuffers {
  codes: number;
  floats: number;
}

/** Also provides what attend-tiled.ts needs. */
export interface DequantizedKeys extends KeyEmitter {
  codedDim: number;
  /** Where the dequantized page is in the scratch, [token][codedDim]. */
  floatsOffset: number;
  /** Whether a constant is added to the scores of each query. */
  hasConstants: boolean;
  /** Writes a row's queries for this page to `queries`, [group][codedDim], and their constants to `constants`. */
  gatherQueries(k: Kernel, page: PageArgs, query: I32, pageRope: I32, queries: I32, constants: I32): void;
}

export interface DequantizedValues extends ValueEmitter {
  floatsOffset: number;
}

const dequantize = (k: Kernel, callee: DequantizeKernel, { page, head, scratch }: PageArgs, buffers: PageBuffers) =>
  k.call(callee, { page, head, codes: i32.add(scratch, buffers.codes), out: i32.add(scratch, buffers.floats) });

/**
 * Transformed queries in f32, followed by the constant that the mean adds to each head's scores. For page-relative keys
 * `transformQuery` only copies the queries; they are rotated and transformed for each page, in the scratch at
 * `relativeQueries`.
 */
export function dequantizedKeys(
  layout: PageLayout,
  shape: AttentionShape,
  tables: CodecTables,
  callee: DequantizeKernel,
  buffers: PageBuffers,
  relativeQueries: number,
): DequantizedKeys {
  const { codedDim } = layout;
  const { headDim, group, pageTokens, relaxed } = shape;
  const constantsOffset = 4 * group * codedDim;
  const rows = { size: 4, dims: codedDim, heads: group, stride: pageTokens, relaxed } as const;
  const transform = (k: Kernel, queries: I32, head: I32, out: I32) => {
    const to = k.i32(out);
    const matrix =
      layout.queryMatrix && k.i32(headMatrix(layout, layout.queryMatrix, tables.queryMatrix!, headDim, head));
    for (let g = 0; g < group; g++) {
      const query = k.i32(i32.add(queries, 4 * headDim * g));
      applyMatrix(k, matrix, codedDim, headDim, query, i32.add(to, 4 * codedDim * g), layout.diagonalBlocks);
      const constant = tables.mean === undefined ? f32.const(0) : dotMean(k, tables.mean, head, headDim, query);
      k.do(f32.store(to, constant, constantsOffset + 4 * g));
    }
  };
  const queryBytes = constantsOffset + 16 * Math.ceil(group / 4);
  /** The address of a row's transformed queries for the current page. */
  const queriesForPage = (k: Kernel, { head, scratch }: PageArgs, query: I32, pageRope: I32): I32 => {
    if (!layout.ropeFrequencies) return query;
    const rotated = k.i32(i32.add(i32.add(scratch, relativeQueries), queryBytes));
    for (let g = 0; g < group; g++) {
      makePageRelative(k, headDim, pageRope, i32.add(query, 4 * headDim * g), i32.add(rotated, 4 * headDim * g));
    }
    const transformed = k.i32(i32.add(scratch, relativeQueries));
    transform(k, rotated, head, transformed);
    return transformed;
  };
  return {
    codedDim,
    floatsOffset: buffers.floats,
    hasConstants: tables.mean !== undefined,
    queryBytes: layout.ropeFrequencies ? 4 * group * headDim : queryBytes,
    transformQuery(k, queries, head, out) {
      if (!layout.ropeFrequencies) transform(k, queries, head, out);
      else mapVectors(k, 4 * group * headDim, queries, k.i32(out));
    },
    beginPage: (k, page) => dequantize(k, callee, page, buffers),
    scorePage(k, page, query, scores, pageRope) {
      const transformed = queriesForPage(k, page, query, pageRope);
      const floats = contiguous(i32.add(page.scratch, buffers.floats), pageTokens);
      scoreRows(k, rows, floats, transformed, scores);
      if (tables.mean !== undefined) addConstants(k, transformed, constantsOffset, group, scores, pageTokens);
    },
    gatherQueries(k, page, query, pageRope, queries, constants) {
      const from = k.i32(queriesForPage(k, page, query, pageRope));
      const [to, constantsTo] = [k.i32(queries), k.i32(constants)];
      mapVectors(k, constantsOffset, from, to);
      for (let g = 0; g < group; g++) k.do(f32.store(constantsTo, f32.load(from, constantsOffset + 4 * g), 4 * g));
    },
  };
}

/** Scratch for a group's page-relative queries, before and after the transform. */
export const pageRelativeQueryBytes = (
  { codedDim, ropeFrequencies }: PageLayout,
  { group, headDim }: AttentionShape,
): number => (ropeFrequencies ? 4 * group * (codedDim + headDim + 4) : 0);

/** Adds each head's constant, at `offset` of its query, to its scores. */
function addConstants(k: Kernel, query: I32, offset: number, group: number, scores: I32, pageTokens: number): void {
  for (let g = 0; g < group; g++) {
    const constant = k.v128(v128.load32Splat(query, offset + 4 * g));
    const from = k.i32(i32.add(scores, 4 * g * pageTokens));
    mapVectors(k, 4 * pageTokens, from, from, v => f32x4.add(v, constant));
  }
}

export function dequantizedValues(
  layout: PageLayout,
  shape: AttentionShape,
  callee: DequantizeKernel,
  buffers: PageBuffers,
): DequantizedValues {
  const { codedDim } = layout;
  const { group, pageTokens, relaxed } = shape;
  const rows = { size: 4, dims: codedDim, heads: group, stride: pageTokens, relaxed } as const;
  return {
    codedDim,
    floatsOffset: buffers.floats,
    beginPage: (k, page) => dequantize(k, callee, page, buffers),
    accumulatePage(k, { scratch }, scores, state) {
      const floats = contiguous(i32.add(scratch, buffers.floats), pageTokens);
      softmaxAndSum(k, rows, floats, scores, pageTokens, state);
    },
  };
}
