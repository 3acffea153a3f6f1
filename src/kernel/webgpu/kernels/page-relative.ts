/**
 * Page-relative queries: keys stored relative to their page need each query rotated back (RoPE) to where the page
 * begins, then transformed, once per page. `page_rotations` has the cosine and sine of every pair at the start of
 * every page.
 */

import type { PageLayout } from '../../page-layout.ts';
import { readBuffer } from '../kernel.ts';
import { type PageShape, WORKGROUP_SIZE } from './shape.ts';
import { PAGE_ITEM } from './work-items.ts';

/** Name of that binding. */
export const PAGE_ROTATIONS = 'page_rotations';

export function pageRelativeQueryLoader(layout: PageLayout, { headDim: D }: PageShape, perHead: boolean) {
  const { codedDim: C, queryMatrix, mean, ropeFrequencies, diagonalBlocks = [D] } = layout;
  const pairs = ropeFrequencies!.length;
  const tableFloat = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  const unrolled = diagonalBlocks.every(size => size % 8 === 0) ? 8 : 1;
  // The matrix is transposed (tables.ts), so that neighbouring lanes read neighbouring words.
  const matrixAt = (i: string) => tableFloat(`${perHead ? `head * ${C * D} + ` : ''}(${i}) * ${C} + n`);
  return {
    /** Members of the key stage. */
    stage: {
      queryWords: D,
      loadedWords: D,
      load: () => 'raw_query[at] = bitcast<f32>(queries[origin + n]) * p.scale;',
      buffers: [readBuffer(PAGE_ROTATIONS, 'vec2f')],
    },
    text: (Q: number) => `var<workgroup> raw_query: array<f32, ${Q * D}>;
var<workgroup> rotated: array<f32, ${Q * D}>;
${mean ? `var<workgroup> mean_sums: array<vec4f, ${Q * 8}>;` : ''}
${queryMatrix ? blockOf(diagonalBlocks) : ''}`,
    /**
     * Runs `store` for every coded dim n of every query q, with the value in `sum`; then `storeMean` with what the mean
     * adds.
     */
    begin: (Q: number, store: string, storeMean: string) => /* wgsl */ `
    for (var n = lane; n < ${(Q * D) / 2}; n += ${WORKGROUP_SIZE}) {
      let pair = n % ${D / 2};
      var both = vec2f(raw_query[2 * n], raw_query[2 * n + 1]);
      if (pair < ${pairs}) {
        let rotation = ${PAGE_ROTATIONS}[(${PAGE_ITEM.at.firstPage} + page) * ${pairs} + pair];
        both = vec2f(fma(both.x, rotation.x, both.y * rotation.y), fma(both.y, rotation.x, -(both.x * rotation.y)));
      }
      rotated[2 * n] = both.x;
      rotated[2 * n + 1] = both.y;
    }
    workgroupBarrier();
    for (var n = lane; n < ${C}; n += ${WORKGROUP_SIZE}) {
      @unroll(q, ${Q}) var sum$q = 0.0;
      ${
        queryMatrix
          ? `let block = block_of(n);
      for (var i = block.x; i < block.y; i += ${unrolled}) {
        @unroll(u, ${unrolled}) let matrix$u = ${matrixAt('i + $u')};
        @unroll(q, ${Q}) @unroll(u, ${unrolled}) sum$q = fma(matrix$u, rotated[$(q * ${D}) + i + $u], sum$q);
      }`
          : `@unroll(q, ${Q}) sum$q = rotated[$(q * ${D}) + n];`
      }
      @unroll(q, ${Q}) {{ let q = $qu; let sum = sum$q; ${store} }}
    }
    ${
      mean
        ? `for (var at = lane; at < ${Q * 32}; at += ${WORKGROUP_SIZE}) {
      var sum = 0.0;
      for (var i = at % 32; i < ${D}; i += 32) {
        sum = fma(${tableFloat(`${queryMatrix?.length ?? 0} + head * ${D} + i`)}, rotated[at / 32 * ${D} + i], sum);
      }
      mean_sums[at / 4][at % 4] = sum;
    }`
        : ''
    }
    workgroupBarrier();
    if (lane < ${Q}) {
      let q = lane;
      ${
        mean
          ? `var all = mean_sums[8 * q];
      for (var n = 1u; n < 8; n++) { all += mean_sums[8 * q + n]; }
      let sum = (all.x + all.y) + (all.z + all.w);`
          : 'let sum = 0.0;'
      }
      ${storeMean}
    }`,
  };
}

/** First dim and end of the block that contains dim n. */
export function blockOf(blocks: readonly number[]): string {
  const lines: string[] = [];
  let first = 0;
  for (let b = 0; b < blocks.length; ) {
    const [start, size] = [first, blocks[b]];
    while (blocks[b] === size) {
      first += size;
      b++;
    }
    lines.push(
      `if (n < ${first}) { let at = ${start} + (n - ${start}) / ${size} * ${size}; return vec2u(at, at + ${size}); }`,
    );
  }
  return `fn block_of(n: u32) -> vec2u {\n  ${lines.join('\n  ')}\n  return vec2u(0);\n}`;
}
