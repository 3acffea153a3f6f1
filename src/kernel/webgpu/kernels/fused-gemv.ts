/**
 * Fused GEMV: several matrices that share their input, in one dispatch; with the norm before them (of a single row) and
 * the gate of a feed-forward network or the append to the cache after them. Sums run in the order of gemv.ts.
 */

import type { Activation } from '../../device.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ROW_TILE } from '../weights.ts';
import { gated, int8Block, int8Buffers, toInt8 } from './activations.ts';
import {
  accumulateSplits,
  addSplits,
  type GemvOptions,
  gemvName,
  int8Term,
  integerWeights,
  type MatmulVariant,
  SPLIT_K,
  splitStart,
  splitsPerPass,
  variantName,
} from './gemv.ts';
import { canSumSquares, normalize, normBuffers, normParams } from './norm.ts';
import { each, ropeRotate, toF16, unpackHalves } from './snippets.ts';

/** For queries, keys and values of one row: queries and keys are rotated by RoPE, keys and values also go into the tail. */
export interface TailShape {
  headDim: number;
  kvHeads: number;
}

/** Workgroups are the row tiles of all matrices, one matrix after the other. `tail`: for q, k and v of one row. */
export const fusedGemv = (m: MatmulVariant, options: GemvOptions, count: number, tail?: TailShape): Kernel => {
  const { rows } = options;
  const input = inputText(options);
  const splits = splitsPerPass(options);
  return {
    name: `fused gemv ${variantName(m)} ${gemvName(options)} of ${count}${tail ? ` append ${tail.kvHeads} x ${tail.headDim}` : ''}`,
    summary:
      'Fused GEMV: several matrices that share their input, with the norm before and the cache append after them.',
    params: [
      ...u32('inputs', 'blocks'),
      ...input.params,
      ...u32(...Array.from({ length: count }, (_, k) => `rows${k}`), ...(tail ? ['pairs', 'tailWord', 'tokens'] : [])),
    ],
    buffers: [
      ...input.buffers,
      ...Array.from({ length: count }, (_, k) => [
        readBuffer(`codes${k}`, 'vec4u'),
        readBuffer(`scales${k}`, 'u32'),
      ]).flat(),
      ...Array.from({ length: count }, (_, k) => writeBuffer(`out${k}`, tail ? 'vec2f' : 'f32')),
      ...(tail ? [readBuffer('angles', 'vec2f'), writeBuffer('pool', 'u32')] : []),
    ],
    size: splits * ROW_TILE,
    body: /* wgsl */ `
${unpackHalves}
${integerWeights(m.format, count)}
${int8Term(m.format, 'xstats')}
${options.normBlocks ? int8Block : ''}
${input.text}
${splitStart}
var<workgroup> sums: array<f32, ${SPLIT_K * rows * ROW_TILE}>;
${addSplits(rows, 'sums')}
${tail ? `${toF16}\n${ropeRotate}` : ''}
fn main(group: vec3u, lane: u32) {
  let first = group.y * ${rows};
  ${input.call}
  var row_tile = group.x;
  ${each(
    count,
    k => `{
    let row_tiles = (p.rows${k} + ${ROW_TILE - 1}) / ${ROW_TILE};
    if (row_tile < row_tiles) {
      ${accumulateSplits(options, 'row_tile', [String(k)])}
      workgroupBarrier();
      ${tail ? storeIntoTail(k, tail) : storeRows(k, rows, splits)}
      return;
    }
    row_tile -= row_tiles;
  }`,
  )}
}`,
  };
};

const storeRows = (k: number, rows: number, splits: number) => /* wgsl */ `
      for (var at = lane; at < ${rows * ROW_TILE}; at += ${splits * ROW_TILE}) {
        let o = row_tile * ${ROW_TILE} + at % ${ROW_TILE};
        let row = first + at / ${ROW_TILE};
        if (o < p.rows${k} && row < p.inputs) { out${k}[row * p.rows${k} + o] = add_sums(at); }
      }`;

/** Writes what the `append` kernel does; `tailWord` is where this token begins in the first head of the tail. */
const storeIntoTail = (k: number, { headDim, kvHeads }: TailShape) => /* wgsl */ `
      let o = row_tile * ${ROW_TILE} + 2 * lane;
      if (lane < ${ROW_TILE / 2} && o < p.rows${k}) {
        let pair = o % ${headDim} / 2;
        var y = vec2f(add_sums(2 * lane), add_sums(2 * lane + 1));
        ${k < 2 ? 'if (pair < p.pairs) { y = rope_rotate(y, angles[pair]); }' : ''}
        out${k}[o / 2] = y;
        ${k > 0 ? `pool[p.tailWord + (${(k - 1) * kvHeads} + o / ${headDim}) * p.tokens * ${headDim / 2} + pair] = to_f16(y.x) | (to_f16(y.y) << 16);` : ''}
      }`;

/** activation(a) * b of two projections a and b, as floats and as int8 for the next matrix. */
export const gatedGemv = (m: MatmulVariant, options: GemvOptions, activation: Activation): Kernel => {
  const { rows } = options;
  const size = splitsPerPass(options) * ROW_TILE;
  const input = inputText(options);
  return {
    name: `gated gemv ${activation} ${variantName(m)} ${gemvName(options)}`,
    summary: `Fused GEMV: gate and up projection, then ${activation}(gate) * up.`,
    params: [...u32('inputs', 'blocks'), ...input.params, ...u32('rows')],
    buffers: [
      ...input.buffers,
      ...[0, 1].flatMap(k => [readBuffer(`codes${k}`, 'vec4u'), readBuffer(`scales${k}`, 'u32')]),
      writeBuffer('out', 'vec4f'),
      ...int8Buffers,
    ],
    size,
    body: /* wgsl */ `
${unpackHalves}
${integerWeights(m.format, 2)}
${int8Term(m.format, 'xstats')}
${input.text}
${splitStart}
${gated(activation)}
${toInt8(size)}
var<workgroup> sums0: array<f32, ${SPLIT_K * rows * ROW_TILE}>;
var<workgroup> sums1: array<f32, ${SPLIT_K * rows * ROW_TILE}>;
${addSplits(rows, 'sums0')}
${addSplits(rows, 'sums1')}
fn main(group: vec3u, lane: u32) {
  let first = group.y * ${rows};
  ${input.call}
  ${accumulateSplits(options, 'group.x', ['0', '1'])}
  workgroupBarrier();
  for (var at = lane; at < ${rows * ROW_TILE}; at += ${size}) { sums0[at] = gated(add_sums0(at), add_sums1(at)); }
  workgroupBarrier();
  let row = lane / ${ROW_TILE / 4};
  let four = 4 * min(lane, ${(rows * ROW_TILE) / 4 - 1}u);
  let y = vec4f(${each(4, j => `sums0[four + ${j}]`, ', ')});
  let live = row < ${rows} && first + row < p.inputs;
  let to = (first + row) * p.rows / 4 + group.x * ${ROW_TILE / 4} + lane % ${ROW_TILE / 4};
  if (live) { out[to] = y; }
  to_int8(y, to, lane, live);
}`,
  };
};

/** Whether a workgroup has the invocations to normalize a row with the same rounding as the norm kernel. */
export const canFuseNorm = (options: GemvOptions): boolean =>
  options.rows === 1 && canSumSquares(splitsPerPass(options) * ROW_TILE);

/** The int8 activations: an input, or made here from a row that this kernel normalizes. */
function inputText(options: GemvOptions) {
  if (!options.normBlocks)
    return { params: [], buffers: [readBuffer('xq', 'vec4u'), readBuffer('xstats', 'vec2u')], text: '', call: '' };
  return {
    params: normParams,
    buffers: normBuffers,
    text: normalize(splitsPerPass(options) * ROW_TILE, options.normBlocks),
    call: 'normalize(group.x == 0, lane);',
  };
}
