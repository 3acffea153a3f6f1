/**
 * Sparse spectral keys (tri): scores directly from their coefficients, as floats. Queries are rotated back to where the
 * page begins, and each pair of a key by the position of its token in the page. A lane owns four tokens.
 */

import type { PageLayout } from '../../../page-layout.ts';
import { readFour } from '../grid.ts';
import { blockStart } from '../names.ts';
import { PAGE_ROTATIONS } from '../page-relative.ts';
import type { PageShape } from '../shape.ts';
import { float } from '../snippets.ts';
import { encodingTableOffset } from '../tables.ts';
import { PAGE_ITEM } from '../work-items.ts';
import { addTerm, type KeyStage, LOG2E, vec4Of } from './attend.ts';
import { SCRATCH, vectors } from './names.ts';
import { LANES } from './subgroup.ts';

/** Pairs prefetched before the first is used. */
const PREFETCH = 4;

export function spectrumKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const { encoding, ropeFrequencies, queryMatrix, mean, sharedBytes, blockBytes } = layout;
  if (
    encoding.kind !== 'spectrum' ||
    !ropeFrequencies ||
    queryMatrix ||
    mean ||
    encoding.cosines.bits > 8 ||
    P !== 4 * LANES
  )
    return undefined;
  const { keptPairs, pairsOffset, cosines, sines, scales } = encoding;
  if ([sharedBytes, blockBytes].some(n => n % 8 !== 0) || scales.bytes !== 2 || scales.offset % 8 !== 0)
    return undefined;
  const grids = { pairs: { offset: pairsOffset, bits: 8, order: 'columns' as const }, cosines, sines };
  const readers = Object.entries(grids).map(([id, grid]) =>
    readFour(`key_${id}`, { ...grid, tokens: P, dims: keptPairs }),
  );
  if (readers.includes(undefined)) return undefined;
  const tableStart = encodingTableOffset(layout);
  const shift = `vec4u(${32 - cosines.bits})`;
  const signed = (codes: string) => `vec4f(bitcast<vec4i>(${codes} << ${shift}) >> ${shift})`;
  const prefetch = keptPairs % PREFETCH === 0 ? PREFETCH : 1;
  const rounds = Math.ceil(D / 2 / LANES);
  const pairs = ropeFrequencies.length;
  const query = (Q: number, n: string) => `${SCRATCH}[(${n}) * ${vectors(Q)} + $v]`;
  const raw = `queries[query_origin$q + 2 * min(lane + $(${LANES} * k), ${D / 2 - 1}u) + $h]`;
  return {
    name: `spectrum ${name}`,
    dim: D,
    queryWords: D,
    scratchVectors: Q => D * vectors(Q),
    text: () => readers.join('\n'),
    load: Q => `
  @unroll(k, ${rounds}) @unroll(h, 2) @unroll(v, ${vectors(Q)}) let raw$k_$h_$v = bitcast<vec4f>(vec4u${vec4Of(Q, raw)}) * (p.scale * ${LOG2E});`,
    loadConstants: () => `let keyScales = read_f16x4(${blockStart('key')} + ${scales.offset} + 8 * lane);`,
    begin: Q => `
    workgroupBarrier();
    @unroll(k, ${rounds}) if (lane + $(${LANES} * k) < ${D / 2}) {
      let pair = lane + $(${LANES} * k);
      var rotation = vec2f(1.0, 0.0);
      if (pair < ${pairs}) { rotation = ${PAGE_ROTATIONS}[(${PAGE_ITEM.at.firstPage} + page) * ${pairs} + pair]; }
      @unroll(v, ${vectors(Q)}) {
        ${query(Q, '2 * pair')} = bitcast<vec4u>(fma(raw$k_0_$v, vec4f(rotation.x), raw$k_1_$v * rotation.y));
        ${query(Q, '2 * pair + 1')} = bitcast<vec4u>(fma(raw$k_1_$v, vec4f(rotation.x), -(raw$k_0_$v * rotation.y)));
      }
    }
    workgroupBarrier();`,
    sums: Q => `
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d$j_$v = vec4f(0.0);
    for (var slot = 0u; slot < ${keptPairs}; slot += ${prefetch}) {
      @unroll(u, ${prefetch}) {
        let pairs$u = key_pairs(${blockStart('key')}, slot + $u, lane);
        let cosines$u = ${signed(`key_cosines(${blockStart('key')}, slot + $u, lane)`)};
        let sines$u = ${signed(`key_sines(${blockStart('key')}, slot + $u, lane)`)};
      }
      @unroll(u, ${prefetch}) @unroll(j, 4) {{
        let rotation_at = ${tableStart} + 2 * ((4 * lane + $j) * ${D / 2} + pairs$u[$j]);
        let rotation = vec2f(bitcast<f32>(keyTables[rotation_at]), bitcast<f32>(keyTables[rotation_at + 1]));
        let x = fma(cosines$u[$j], rotation.x, -(sines$u[$j] * rotation.y));
        let y = fma(cosines$u[$j], rotation.y, sines$u[$j] * rotation.x);
        @unroll(v, ${vectors(Q)}) d$j_$v = fma(bitcast<vec4f>(${query(Q, '2 * pairs$u[$j]')}), vec4f(x),
          fma(bitcast<vec4f>(${query(Q, '2 * pairs$u[$j] + 1')}), vec4f(y), d$j_$v));
      }}
    }
    @unroll(q, ${Q}) let dots0_$q = vec4f(@list(j, 4, d$j_$[q]));`,
    score: plus => addTerm(`dots$c_$q * keyScales * ${float(1 / (2 ** (cosines.bits - 1) - 1))}`, plus),
  };
}
