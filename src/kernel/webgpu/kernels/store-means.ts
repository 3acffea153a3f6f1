/** Sealing of centered pages: the mean of the page's vectors. */

import type { PageLayout } from '../../page-layout.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ofEveryPage, WORDS_PER_REQUEST } from './pack.ts';
import type { PageShape } from './shape.ts';
import { toF16 } from './snippets.ts';

/** Dims per workgroup of `storeMeans`, and lanes that share the tokens of a dim. */
const MEANS = { dims: 32, lanes: 8 };

/** Centered pages: stores the mean of the page's vectors, and subtracts it from y as stored. */
export function storeMeans(layout: PageLayout, shape: PageShape): Kernel {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const place = `(data[p.table + page * ${WORDS_PER_REQUEST} + 4] + ${layout.meansOffset}) / 4`;
  return {
    name: `store means ${D} ${kvHeads} ${P} ${layout.meansOffset}`,
    summary: 'Sealing, step 1: stores the means of a page and subtracts them.',
    params: u32('table'),
    buffers: [readBuffer('data', 'u32'), writeBuffer('y', 'f32'), writeBuffer('pool', 'u32')],
    size: MEANS.dims * MEANS.lanes,
    body: ofEveryPage(
      /* wgsl */ `
${toF16}
var<workgroup> sums: array<f32, ${MEANS.dims * MEANS.lanes}>;
var<workgroup> means: array<u32, ${MEANS.dims}>;
fn main(group: vec3u, lane: u32) {
  let dim = lane % ${MEANS.dims};
  let share = lane / ${MEANS.dims};
  let head = group.y;
  let first = head * ${P * D} + min(group.x * ${MEANS.dims} + dim, ${D - 1}u);
  var sum = 0.0;
  for (var t = share; t < ${P}; t += ${MEANS.lanes}) { sum += y[first + t * ${D}]; }
  sums[lane] = sum;
  workgroupBarrier();
  if (share == 0) {
    for (var n = 1u; n < ${MEANS.lanes}; n++) { sum += sums[n * ${MEANS.dims} + dim]; }
    means[dim] = to_f16(sum / ${P});
  }
  workgroupBarrier();
  if (group.x * ${MEANS.dims} + dim >= ${D}) { return; }
  let mean = unpack2x16float(means[dim]).x;
  for (var t = share; t < ${P}; t += ${MEANS.lanes}) { y[first + t * ${D}] -= mean; }
  if (share == 0 && dim % 2 == 0) {
    pool[${place} + (head * ${D} + group.x * ${MEANS.dims} + dim) / 2] = means[dim] | (means[dim + 1] << 16);
  }
}`,
      layout,
      shape,
    ),
  };
}

/** Workgroups of `storeMeans` per head. */
export const meanWorkgroups = ({ headDim }: PageShape): number => Math.ceil(headDim / MEANS.dims);
