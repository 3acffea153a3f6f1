/**
 * Keys with a range per channel and group of tokens (kivi, oscar), as integers. A code is a byte relative to the middle
 * of its range, and its step is folded into the query: every group of tokens of a page has its own int8 queries.
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart, pageStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { float, packRounded, ROUND_MAGIC } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { addTerm, type KeyStage, LOG2E, vec4Of } from './attend.ts';
import { products } from './int8-levels.ts';
import { SCRATCH, vectors } from './names.ts';
import { type Lines, prefetchStrip, stripLoop } from './strip-loop.ts';
import { LANES, reduceAddRun, reduceScatterRuns, selectByRun } from './subgroup.ts';

export function affineKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const { encoding, sharedBytes, blockBytes, codedDim } = layout;
  if (
    encoding.kind !== 'affine' ||
    encoding.axis !== 'channel' ||
    encoding.codes.order !== 'rows' ||
    layout.ropeFrequencies
  )
    return undefined;
  const { codes, groupSize, rangesOffset, norms } = encoding;
  const strips = stripsOf(codes.bits, D, P);
  const aligned = [sharedBytes, blockBytes, codes.offset, rangesOffset].every(n => n % 16 === 0);
  // A lane owns four tokens of one group, and quantizes query words of four dims.
  if (
    !strips ||
    !aligned ||
    groupSize % 4 !== 0 ||
    P % groupSize !== 0 ||
    P !== 4 * LANES ||
    codedDim !== D ||
    D % 4 !== 0
  )
    return undefined;
  if (norms && (norms.bytes !== 2 || norms.offset % 8 !== 0)) return undefined;
  // Neighbouring lanes share a group of tokens.
  const groups = P / groupSize;
  const half = 2 ** (codes.bits - 1);
  const groupOfLane = `(4 * lane / ${groupSize})`;
  const words = D / 4;
  // Query words per lane, and a valid word for lanes that have none.
  const wordsPerLane = Math.ceil(words / LANES);
  const place = `min(lane + $(${LANES} * k), ${words - 1}u)`;
  const hasWord = `lane + $(${LANES} * k) < ${words}`;
  const raw = (Q: number) => {
    const x = `bitcast<vec4f>(vec4u${vec4Of(Q, `queries[query_origin$q + 4 * ${place} + $i]`)})`;
    return words % LANES === 0 ? x : `select(vec4f(0.0), ${x}, ${hasWord})`;
  };
  /** Word n of the queries for group d. */
  const wordAt = (Q: number, d: string, n: string) => `${SCRATCH}[(${d} * ${words} + ${n}) * ${vectors(Q)} + $v]`;
  const lines: Lines = {
    strips,
    id: 'k',
    at: `${blockStart('key')} + ${codes.offset}`,
    lineIndices: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
  };
  /**
   * Quantizes queries times the steps of group `$d` to int8 with a maximum of 127 (as offset binary first, so that the
   * bits of ROUND_MAGIC are the same for all), and sums what the middles of the ranges add.
   */
  const quantizeQueries = (Q: number) => `
    @unroll(v, ${vectors(Q)}) { var max_abs$d_$v = vec4f(0.0); var added$d_$v = vec4f(0.0); }
    {
      @unroll(k, ${wordsPerLane}) @unroll(i, 4) {
        let range$k_$i = unpack2x16float(keyRanges$d_$k[$i]);
        let middle$k_$i = vec4f(fma(${float(half)}, range$k_$i.y, range$k_$i.x));
        @unroll(v, ${vectors(Q)}) {
          let x$k_$i_$v = raw$k_$i_$v * range$k_$i.y;
          max_abs$d_$v = max(max_abs$d_$v, abs(x$k_$i_$v));
          added$d_$v = fma(raw$k_$i_$v, middle$k_$i, added$d_$v);
        }
      }
      @unroll(v, ${vectors(Q)}) {
        max_abs$d_$v = reduce_max(max_abs$d_$v);
        let unit$v = 127.0 / max(max_abs$d_$v, vec4f(1e-30));
      }
      @unroll(k, ${wordsPerLane}) if (${hasWord}) {
        @unroll(i, 4) @unroll(v, ${vectors(Q)}) let y$i_$v = bitcast<vec4u>(fma(x$k_$i_$v, unit$v, ${ROUND_MAGIC} + 128.0));
        @unroll(v, ${vectors(Q)}) ${wordAt(Q, '$d', place)} = ${packRounded(['y0_$v', 'y1_$v', 'y2_$v', 'y3_$v'], 'vec4u')} ^ vec4u(0x80808080u);
      }
    }`;
  const perGroup = (text: (d: number) => string) => Array.from({ length: groups }, (_, d) => text(d));
  const unit = Math.LOG2E / 127 / 2 ** (8 - codes.bits);
  return {
    name: `channels ${name}`,
    dim: D,
    queryWords: D,
    scratchVectors: Q => groups * words * vectors(Q),
    text: () => '',
    load: Q => `@unroll(k, ${wordsPerLane}) @unroll(i, 4) @unroll(v, ${vectors(Q)}) let raw$k_$i_$v = ${raw(Q)};`,
    loadConstants: () => `
    ${norms ? `let keyNorms0 = read_f16x4(${norms.per === 'page' ? pageStart('key') : blockStart('key')} + ${norms.offset} + 8 * lane);` : ''}
    @unroll(d, ${groups}) @unroll(k, ${wordsPerLane}) let keyRanges$d_$k = pool4[(${blockStart('key')} + ${rangesOffset}) / 16 + $(d * ${words}) + ${place}];`,
    begin: Q => `
    workgroupBarrier();
    @unroll(d, ${groups}) { ${quantizeQueries(Q)} }
    @unroll(v, ${vectors(Q)}) {
      ${reduceScatterRuns(
        perGroup(d => `added${d}_$v`),
        'added$v',
      )}
      ${reduceAddRun('added$v', groups)}
      added$v *= ${LOG2E};
      let query_scale$v = ${selectByRun(perGroup(d => `max_abs${d}_$v`))} * ${float(unit)};
    }
    ${prefetchStrip(lines)}
    workgroupBarrier();`,
    sums: Q => `
    @unroll(j, 4) @unroll(v, ${vectors(Q)}) var d$j_$v = vec4i(0);
    ${stripLoop(
      lines,
      (n, words) =>
        products(
          Q,
          'I',
          words.map(({ top }) => top),
          'd',
          wordAt(Q, groupOfLane, n),
        ),
      { prefetched: true, flipSigns: true },
    )}
    @unroll(q, ${Q}) let dots0_$q = vec4f(vec4i(@list(j, 4, d$j_$[q])));`,
    score: plus => {
      const score = 'fma(dots$c_$q, vec4f(query_scale$[q]), vec4f(added$[q]))';
      return norms ? `fma(keyNorms0, ${score}, ${plus ?? 'vec4f(0.0)'})` : addTerm(score, plus);
    },
  };
}
