/**
 * Seals a page: encodes f16 tail tokens with any codec, one KV head per chunk. Same steps as the reference in codec/.
 */
import type { PageEncoding, PageLayout, PageShape, ScalarArray } from '../../page-layout.ts';
import { packGrid } from '../code-grid.ts';
import { type F32, f32, f32x4, type I32, i32, i32x4, index, type Local, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { f32ToF16, f32ToFp8, loadF16x4, mapVectors, packLow16, reduceAdd, reduceMax, storeF16 } from '../ops.ts';
import { chunked } from '../task.ts';
import { sealAdditive } from './additive.ts';
import type { ThreadScratch } from './attend.ts';
import { blockAddress, type CodecTables, loadScalar, Q_BLOCK } from './dequantize-page.ts';
import type { SealContext } from './head-context.ts';
import { sealMixedBits } from './mixed-bit-columns.ts';
import { sealOaken } from './oaken.ts';
import { storeMeans } from './page-means.ts';
import { sealCodebook } from './product-codebook.ts';
import { sealSpectrum } from './spectrum.ts';
import { type Tail, tailVector } from './tail.ts';
import { addMean, applyMatrix, headMatrix, makePageRelative } from './transform.ts';

/** Scratch bytes per thread: vectors before and after the transform, two bytes per code, and two more vectors. */
export const sealScratch = ({ headDim, pageTokens }: PageShape) => 10 * headDim * pageTokens + 8 * headDim;

/**
 * The first four parameters are a `Tail`. `pageRope` is the page's rotation, for page-relative keys; `errors` receives one
 * f32 per head where the layout has `tracksError`.
 */
export function sealPage(
  name: string,
  layout: PageLayout,
  shape: PageShape,
  tables: CodecTables,
  scratch: ThreadScratch,
) {
  const { headDim: D, pageTokens: P, kvHeads } = shape;
  const k = new Kernel(
    chunked(name, 'table', 'tailTokens', 'pageStart', 'firstCodedRow', 'page', 'pageRope', 'errors'),
  );
  const { page, pageRope, errors, chunk, chunks, thread } = k.params;
  const x = k.i32(scratch(k, thread));
  const y = layout.queryMatrix ? k.i32(i32.add(x, 4 * D * P)) : x;
  const codes = k.i32(i32.add(x, 8 * D * P));
  const vectors = k.i32(i32.add(codes, 2 * D * P));
  const encodeMatrix = layout.encodeMatrix ?? layout.queryMatrix;
  k.for(chunk, kvHeads, chunks, head => {
    loadTail(k, k.params, shape, head, x);
    const matrix =
      encodeMatrix && k.i32(headMatrix(layout, encodeMatrix, (tables.encodeMatrix ?? tables.queryMatrix)!, D, head));
    k.for(0, P, 1, t => {
      const vector = k.i32(index(x, 4 * D, t));
      if (layout.ropeFrequencies) makePageRelative(k, D, pageRope, vector, vector);
      if (tables.mean !== undefined) addMean(k, tables.mean, head, D, f32.const(-1), vector);
      if (matrix) applyMatrix(k, matrix, D, D, vector, index(y, 4 * D, t), layout.diagonalBlocks);
    });
    storeMeans(k, layout, shape, { page, head }, y);
    const block = k.i32(blockAddress(layout, { page, head }));
    const context: SealContext = { k, shape, page, head, block, codes, y, x, tail: k.params, scratch: vectors };
    const { encoding } = layout;
    const storeError = (error: F32) => k.do(f32.store(index(errors, 4, head), error));
    if (encoding.kind === 'levels') sealLevels(context, encoding, tables);
    else if (encoding.kind === 'hybrid') sealHybrid(context, encoding, tables);
    else if (encoding.kind === 'affine') sealAffine(context, encoding);
    else if (encoding.kind === 'book') storeError(sealCodebook(context, encoding, tables.books!));
    else if (encoding.kind === 'oaken') sealOaken(context, encoding);
    else if (encoding.kind === 'spectrum') sealSpectrum(context, encoding, tables.tokenRope!);
    else if (encoding.kind === 'q8_0' || encoding.kind === 'q4_0') sealQBlocks(context, encoding.kind);
    else if (encoding.kind === 'additive') storeError(sealAdditive(context, tables.additive!));
    else if (encoding.kind === 'mixed') sealMixedBits(context, tables.mixedColumns!);
    else sealFloats(context, encoding.kind);
  });
  return k;
}

function loadTail(k: Kernel, tail: Tail, shape: PageShape, head: I32, x: I32): void {
  const { headDim: D, pageTokens: P } = shape;
  k.for(0, P, 1, t => {
    const from = k.i32(tailVector(tail, shape, head, t));
    const to = k.i32(index(x, 4 * D, t));
    k.for(0, D, 4, i => k.do(v128.store(index(to, 4, i), loadF16x4(index(from, 2, i)))));
  });
}

function vectorNorm(k: Kernel, vector: I32, D: number): Local<'f32'> {
  const sum = k.v128(v128.zero);
  const v = k.v128();
  k.for(0, 4 * D, 16, i => {
    k.set(v, v128.load(i32.add(vector, i)));
    k.set(sum, f32x4.add(sum, f32x4.mul(v, v)));
  });
  return k.f32(f32.sqrt(reduceAdd(k, sum)));
}

function storeScalar(k: Kernel, { offset, bytes }: ScalarArray, base: I32, t: I32, value: F32): void {
  const at = index(i32.add(base, offset), bytes, t);
  if (bytes === 2) storeF16(k, at, value);
  else k.do(f32.store(at, value));
}

/** Above every value. */
const MAX_RANGE = 3e38;

const inverse = (x: F32): F32 => f32.select(f32.gt(x, f32.const(0)), f32.div(f32.const(1), x), f32.const(0));

/** The nearest level of each value: the number of midpoints between levels that are not above it. */
function nearestLevels(k: Kernel, value: V128, levels: Float32Array): V128 {
  const v = k.v128(value);
  let codes = v128.zero as V128;
  for (let i = 0; i + 1 < levels.length; i++) {
    codes = i32x4.sub(codes, f32x4.ge(v, f32x4.const((levels[i] + levels[i + 1]) / 2)));
  }
  return codes;
}

/** Two's complement codes c, with levels (c + 1/2) step. */
function uniformCodes(value: V128, levels: Float32Array): V128 {
  const half = levels.length / 2;
  const step = 2 * levels[0];
  const code = i32x4.fromF32(f32x4.floor(f32x4.mul(value, f32x4.const(1 / step))));
  return v128.and(i32x4.maxS(i32x4.const(-half), i32x4.minS(i32x4.const(half - 1), code)), i32x4.const(2 * half - 1));
}

/** Stores four codes as bytes and returns them. */
function storeCodes(k: Kernel, address: I32, codes: V128): Local<'v128'> {
  const v = k.v128(codes);
  for (let lane = 0; lane < 4; lane++) k.do(i32.store8(address, i32x4.lane(v, lane), lane));
  return v;
}

function sealLevels(
  { k, shape: { headDim: D, pageTokens: P }, block, y, codes }: SealContext,
  encoding: PageEncoding & { kind: 'levels' },
  tables: CodecTables,
): void {
  const { levels } = encoding;
  k.for(0, P, 1, t => {
    const vector = k.i32(index(y, 4 * D, t));
    const norm = vectorNorm(k, vector, D);
    const unit = k.v128(f32x4.splat(inverse(norm)));
    const to = k.i32(index(codes, D, t));
    const squares = k.f32(f32.const(0));
    k.for(0, D, 4, i => {
      const value = f32x4.mul(v128.load(index(vector, 4, i)), unit);
      const nearest = encoding.uniform ? uniformCodes(value, levels) : nearestLevels(k, value, levels);
      const code = storeCodes(k, i32.add(to, i), nearest);
      if (!encoding.normCorrection) return;
      for (let lane = 0; lane < 4; lane++) {
        const level = k.f32(f32.load(i32.mul(i32x4.lane(code, lane), 4), tables.levels[0]));
        k.set(squares, f32.add(squares, f32.mul(level, level)));
      }
    });
    storeScalar(k, encoding.norms, block, t, encoding.normCorrection ? f32.div(norm, f32.sqrt(squares)) : norm);
  });
  packGrid(k, { ...encoding.codes, tokens: P, dims: D }, codes, block);
}

function sealHybrid(
  { k, shape: { headDim: D, pageTokens: P }, block, y, codes, scratch }: SealContext,
  encoding: PageEncoding & { kind: 'hybrid' },
  tables: CodecTables,
): void {
  const { residual, parts } = encoding;
  // Each part has its own tile of codes. The residual replaces the vector.
  const tileOf = (first: number) => i32.add(codes, P * first);
  k.for(0, P, 1, t => {
    const vector = k.i32(index(y, 4 * D, t));
    const norm = vectorNorm(k, vector, D);
    storeScalar(k, encoding.norms, block, t, norm);
    const unit = k.v128(f32x4.splat(inverse(norm)));
    parts.forEach(({ firstDim, endDim, levels }, n) => {
      const to = k.i32(index(tileOf(firstDim), endDim - firstDim, t));
      k.for(firstDim, endDim, 4, i => {
        const at = k.i32(index(vector, 4, i));
        const value = k.v128(f32x4.mul(v128.load(at), unit));
        const code = storeCodes(k, i32.add(to, i32.sub(i, firstDim)), nearestLevels(k, value, levels));
        for (let lane = 0; lane < 4; lane++) {
          const level = f32.load(i32.mul(i32x4.lane(code, lane), 4), tables.levels[n]);
          k.do(f32.store(at, f32.mul(norm, f32.sub(f32x4.lane(value, lane), level)), 4 * lane));
        }
      });
    });
  });
  for (const { codes: grid, firstDim, endDim } of parts) {
    packGrid(k, { ...grid, tokens: P, dims: endDim - firstDim }, tileOf(firstDim), block);
  }
  if (!residual) return;
  k.for(0, P, 1, t => {
    const vector = k.i32(index(y, 4 * D, t));
    storeScalar(k, residual.norms, block, t, vectorNorm(k, vector, D));
    applyMatrix(k, tables.residual, D, D, vector, scratch);
    k.for(0, D, 4, i => {
      const positive = v128.and(f32x4.ge(v128.load(index(scratch, 4, i)), v128.zero), i32x4.const(1));
      storeCodes(k, i32.add(index(codes, D, t), i), positive);
    });
  });
  packGrid(k, { ...residual.signs, tokens: P, dims: D }, codes, block);
}

function sealAffine(
  { k, shape, page, block, y, codes, tail }: SealContext,
  encoding: PageEncoding & { kind: 'affine' },
): void {
  const { headDim: D, pageTokens: P } = shape;
  const { norms, groupSize, axis } = encoding;
  if (norms) {
    const scalars = norms.per === 'page' ? page : block;
    k.for(0, P, 1, t => {
      const vector = k.i32(index(y, 4 * D, t));
      const norm = k.f32(norms.per === 'page' ? tokenNorm(k, tail, t, shape) : vectorNorm(k, vector, D));
      // Heads that share a norm all store the same value.
      storeScalar(k, norms, scalars, t, norm);
      const at = index(i32.add(scalars, norms.offset), norms.bytes, t);
      const unit = k.v128(f32x4.splat(inverse(k.f32(loadScalar(norms, at)))));
      mapVectors(k, 4 * D, vector, vector, v => f32x4.mul(v, unit));
    });
  }
  const ranges = k.i32(i32.add(block, encoding.rangesOffset));
  const [low, high] = [k.f32(), k.f32()];
  const value = k.f32();
  const range = k.i32(ranges);
  /** Encodes one group: its values are `stride` floats apart, its codes `stride` bytes. */
  const encodeGroup = (from: I32, to: I32, stride: number) => {
    const [source, target] = [k.i32(from), k.i32(to)];
    k.set(low, f32.const(MAX_RANGE));
    k.set(high, f32.const(-MAX_RANGE));
    const at = k.i32(source);
    k.for(0, groupSize, 1, () => {
      k.set(value, f32.load(at));
      k.set(low, f32.min(low, value));
      k.set(high, f32.max(high, value));
      k.increment(at, 4 * stride);
    });
    storeF16(k, range, low);
    storeF16(k, range, f32.mul(f32.sub(high, low), f32.const(1 / (2 ** encoding.codes.bits - 1))), 2);
    const scalar: ScalarArray = { offset: 0, bytes: 2 };
    k.set(low, loadScalar(scalar, range));
    const unit = k.f32(inverse(k.f32(loadScalar(scalar, i32.add(range, 2)))));
    k.set(at, source);
    k.for(0, groupSize, 1, () => {
      // Rounds halves up, like Math.round.
      const code = f32.floor(f32.add(f32.mul(f32.sub(f32.load(at), low), unit), f32.const(0.5)));
      const maxCode = 2 ** encoding.codes.bits - 1;
      k.do(i32.store8(target, i32.fromF32(f32.max(f32.const(0), f32.min(f32.const(maxCode), code)))));
      k.increment(at, 4 * stride);
      k.increment(target, stride);
    });
    k.increment(range, 4);
  };
  if (axis === 'channel') {
    k.for(0, P, groupSize, t => {
      k.for(0, D, 1, i => {
        const first = k.i32(i32.add(i32.mul(t, D), i));
        encodeGroup(index(y, 4, first), i32.add(codes, first), D);
      });
    });
  } else {
    k.for(0, P * D, groupSize, first => encodeGroup(index(y, 4, first), i32.add(codes, first), 1));
  }
  packGrid(k, { ...encoding.codes, tokens: P, dims: D }, codes, block);
}

/** A token's norm over all KV heads, computed from the tail: the rotation preserves it. */
function tokenNorm(k: Kernel, tail: Tail, t: I32, shape: PageShape): F32 {
  const { kvHeads, headDim: D } = shape;
  const sum = k.v128(v128.zero);
  const v = k.v128();
  k.for(0, kvHeads, 1, head => {
    const from = k.i32(tailVector(tail, shape, head, t));
    k.for(0, 2 * D, 8, i => {
      k.set(v, loadF16x4(i32.add(from, i)));
      k.set(sum, f32x4.add(sum, f32x4.mul(v, v)));
    });
  });
  return f32.sqrt(reduceAdd(k, sum));
}

function sealQBlocks({ k, shape: { headDim: D, pageTokens: P }, block, y }: SealContext, type: 'q8_0' | 'q4_0'): void {
  const [from, to] = [k.i32(y), k.i32(block)];
  k.for(0, P * D, Q_BLOCK.values, () => {
    const magnitude = k.v128(v128.zero);
    for (let i = 0; i < 8; i++) k.set(magnitude, f32x4.max(magnitude, f32x4.abs(v128.load(from, 16 * i))));
    const max = k.f32(reduceMax(k, magnitude));
    if (type === 'q8_0') {
      storeF16(k, to, f32.mul(max, f32.const(1 / 127)));
      const unit = k.f32(f32.mul(inverse(max), f32.const(127)));
      k.for(0, 32, 1, i => {
        const value = k.f32(f32.mul(f32.load(index(from, 4, i)), unit));
        const rounded = f32.floor(f32.add(f32.abs(value), f32.const(0.5)));
        const signed = f32.select(f32.lt(value, f32.const(0)), f32.neg(rounded), rounded);
        k.do(i32.store8(i32.add(to, i), i32.fromF32(signed), 2));
      });
    } else {
      // The first value with the largest magnitude, signed.
      const peak = k.f32(f32.const(0));
      k.for(0, 128, 4, i => {
        const value = k.f32(f32.load(i32.add(from, i)));
        k.if(f32.gt(f32.abs(value), f32.abs(peak)), () => k.set(peak, value));
      });
      const scale = k.f32(f32.mul(peak, f32.const(-1 / 8)));
      storeF16(k, to, scale);
      const unit = k.f32(f32.select(f32.eq(scale, f32.const(0)), f32.const(0), f32.div(f32.const(1), scale)));
      const code = (i: I32, offset: number) => {
        const value = f32.floor(f32.add(f32.mul(f32.load(index(from, 4, i), offset), unit), f32.const(8.5)));
        return i32.fromF32(f32.max(f32.const(0), f32.min(f32.const(15), value)));
      };
      k.for(0, 16, 1, i => k.do(i32.store8(i32.add(to, i), i32.or(code(i, 0), i32.shl(code(i, 64), 4)), 2)));
    }
    k.increment(from, 4 * Q_BLOCK.values);
    k.increment(to, Q_BLOCK[type]);
  });
}

function sealFloats({ k, shape: { headDim: D, pageTokens: P }, block, y }: SealContext, kind: 'f16' | 'fp8'): void {
  k.for(0, P * D, 4, i => {
    const value = k.v128(v128.load(index(y, 4, i)));
    if (kind === 'f16') {
      const f16 = k.v128(f32ToF16(k, value));
      k.do(v128.store64(index(block, 2, i), packLow16(f16, f16)));
    } else storeCodes(k, i32.add(block, i), f32ToFp8(k, value));
  });
}
