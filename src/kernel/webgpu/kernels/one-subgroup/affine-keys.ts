/**
 * Keys with a range per channel and group of tokens (kivi, oscar), as integers. A code is a byte relative to the middle
 * of its range, and its step is folded into the query: every group of tokens of a page has its own int8 queries.
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart, pageStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { each, float, packRounded, ROUND_MAGIC } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { addTerm, type KeyStage, LOG2E, vec4Of } from './attend.ts';
import { products } from './int8-levels.ts';
import { component, dots, queryOrigin, queryScale, queryScaleOf, SCRATCH, vectors } from './names.ts';
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
  const place = (k: number) => `min(lane + ${k * LANES}, ${words - 1}u)`;
  const hasWord = (k: number) => `lane + ${k * LANES} < ${words}`;
  const raw = (Q: number, k: number, i: number, v: number) => {
    const x = `bitcast<vec4f>(vec4u${vec4Of(Q, v, q => `queries[${queryOrigin(q)} + 4 * ${place(k)} + ${i}]`)})`;
    return (k + 1) * LANES <= words ? x : `select(vec4f(0.0), ${x}, ${hasWord(k)})`;
  };
  /** Word n of the queries for group d. */
  const wordAt = (Q: number, d: number | string, n: string, v: number) =>
    `${SCRATCH}[(${d} * ${words} + ${n}) * ${vectors(Q)} + ${v}]`;
  const lines: Lines = {
    strips,
    id: 'k',
    at: `${blockStart('key')} + ${codes.offset}`,
    lineIndices: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
  };
  /**
   * Quantizes queries times the steps of group d to int8 with a maximum of 127 (as offset binary first, so that the
   * bits of ROUND_MAGIC are the same for all), and sums what the middles of the ranges add.
   */
  const quantizeQueries = (Q: number, d: number) => `
    ${each(vectors(Q), v => `var max_abs${d}_${v} = vec4f(0.0); var added${d}_${v} = vec4f(0.0);`)}
    {
      ${each(wordsPerLane, k =>
        each(
          4,
          i => `let range${k}_${i} = unpack2x16float(keyRanges${d}_${k}[${i}]);
      let middle${k}_${i} = vec4f(fma(${float(half)}, range${k}_${i}.y, range${k}_${i}.x));
      ${each(
        vectors(Q),
        v => `let x${k}_${i}_${v} = raw${k}_${i}_${v} * range${k}_${i}.y;
      max_abs${d}_${v} = max(max_abs${d}_${v}, abs(x${k}_${i}_${v}));
      added${d}_${v} = fma(raw${k}_${i}_${v}, middle${k}_${i}, added${d}_${v});`,
      )}`,
        ),
      )}
      ${each(vectors(Q), v => `max_abs${d}_${v} = reduce_max(max_abs${d}_${v}); let unit${v} = 127.0 / max(max_abs${d}_${v}, vec4f(1e-30));`)}
      ${each(
        wordsPerLane,
        k => `if (${hasWord(k)}) {
        ${each(4, i => each(vectors(Q), v => `let y${i}_${v} = bitcast<vec4u>(fma(x${k}_${i}_${v}, unit${v}, ${ROUND_MAGIC} + 128.0));`, ' '))}
        ${each(
          vectors(Q),
          v =>
            `${wordAt(Q, d, place(k), v)} = ${packRounded(
              [0, 1, 2, 3].map(i => `y${i}_${v}`),
              'vec4u',
            )} ^ vec4u(0x80808080u);`,
        )}
      }`,
      )}
    }`;
  const perGroup = (text: (d: number) => string) => Array.from({ length: groups }, (_, d) => text(d));
  const unit = Math.LOG2E / 127 / 2 ** (8 - codes.bits);
  return {
    name: `channels ${name}`,
    dim: D,
    queryWords: D,
    scratchVectors: Q => groups * words * vectors(Q),
    text: () => '',
    load: Q =>
      each(wordsPerLane, k => each(4, i => each(vectors(Q), v => `let raw${k}_${i}_${v} = ${raw(Q, k, i, v)};`, ' '))),
    loadConstants: () => `
    ${norms ? `let keyNorms0 = read_f16x4(${norms.per === 'page' ? pageStart('key') : blockStart('key')} + ${norms.offset} + 8 * lane);` : ''}
    ${each(groups, d => each(wordsPerLane, k => `let keyRanges${d}_${k} = pool4[(${blockStart('key')} + ${rangesOffset}) / 16 + ${d * words} + ${place(k)}];`, ' '))}`,
    begin: Q => `
    workgroupBarrier();
    ${each(groups, d => quantizeQueries(Q, d))}
    ${each(
      vectors(Q),
      v => `${reduceScatterRuns(
        perGroup(d => `added${d}_${v}`),
        `added${v}`,
      )} ${reduceAddRun(`added${v}`, groups)} added${v} *= ${LOG2E};
    let ${queryScale(v)} = ${selectByRun(perGroup(d => `max_abs${d}_${v}`))} * ${float(unit)};`,
    )}
    ${prefetchStrip(lines)}
    workgroupBarrier();`,
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' '))}
    ${stripLoop(
      lines,
      (n, words) =>
        products(
          Q,
          'I',
          words.map(({ top }) => top),
          (l, q) => component(`d${l}_`, q),
          v => wordAt(Q, groupOfLane, n, v),
        ),
      { prefetched: true, flipSigns: true },
    )}
    ${each(Q, q => `let ${dots(0, q)} = vec4f(vec4i(${each(4, j => component(`d${j}_`, q), ', ')}));`)}`,
    score: (q, _, plus) => {
      const score = `fma(${dots(0, q)}, vec4f(${queryScaleOf(q)}), vec4f(${component('added', q)}))`;
      return norms ? `fma(keyNorms0, ${score}, ${plus ?? 'vec4f(0.0)'})` : addTerm(score, plus);
    },
  };
}
