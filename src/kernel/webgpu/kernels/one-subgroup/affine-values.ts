/**
 * Values with a range per token and group of dims (kivi, oscar), as integers. Probabilities are multiplied by the steps
 * of a group, so every group has its own quantized probabilities; what the middles of the ranges add is summed in
 * floats. Ranges stay packed until used, since registers limit how many workgroups run at once.
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { each, float, maxOf4 } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { roundsOf, type Tokens, type ValueStage, vec4Of } from './attend.ts';
import { addColumns } from './int8-levels.ts';
import { output, pageFactor, probabilities, rescale, vectors } from './names.ts';
import { quantizedProbabilities, sumsOfWords } from './quantized-probabilities.ts';
import { type Lines, prefetchStrip } from './strip-loop.ts';
import { LANES, reduceAddRun, reduceScatterRuns, selectByRun } from './subgroup.ts';

export function affineValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const { encoding, sharedBytes, blockBytes } = layout;
  if (encoding.kind !== 'affine' || encoding.axis !== 'token' || encoding.codes.order !== 'columns' || encoding.norms)
    return undefined;
  const { codes, groupSize, rangesOffset } = encoding;
  const strips = stripsOf(codes.bits, P, D);
  const aligned = [sharedBytes, blockBytes, codes.offset, rangesOffset].every(n => n % 16 === 0);
  // A lane owns four tokens, and four dims of one group; `runs` groups lie in neighbouring lanes.
  const runs = (4 * LANES) / groupSize;
  if (!strips || !aligned || P !== 4 * LANES || D % groupSize !== 0 || !Number.isInteger(Math.log2(runs)))
    return undefined;
  const groups = D / groupSize;
  const rounds = roundsOf(D);
  const middle = (2 ** codes.bits - 1) / 2;
  const quantized = quantizedProbabilities(P, groups);
  const groupOf = (r: number) => `(lane / ${LANES / runs} + ${runs * r})`;
  const lines = (r: number): Lines => ({
    strips,
    id: `c${r}_`,
    at: `${blockStart('value')} + ${codes.offset}`,
    lineIndices: [0, 1, 2, 3].map(j => `min(4 * lane + ${4 * LANES * r + j}, ${D - 1}u)`),
  });
  /** The ranges of a lane's token j, as vec4u where aligned. */
  const aligned4 = groups % 4 === 0;
  const read = ({ at }: Tokens, j: number) => {
    const first = `((${blockStart('value')} + ${rangesOffset}) / 4 + ${at(0, j)} * ${groups})`;
    return aligned4
      ? each(groups / 4, k => `let ranges${j}_${k} = pool4[${first} / 4 + ${k}];`, ' ')
      : each(groups, d => `let ranges${j}_${d} = pool[${first} + ${d}];`, ' ');
  };
  const range = (d: number, j: number) => (aligned4 ? `ranges${j}_${d >> 2}[${d & 3}]` : `ranges${j}_${d}`);
  const steps = (d: number) => `vec4f(${each(4, j => `unpack2x16float(${range(d, j)}).y`, ', ')})`;
  const lows = (d: number) => `vec4f(${each(4, j => `unpack2x16float(${range(d, j)}).x`, ', ')})`;
  const maxStep = (d: number) => `max_steps${d >> 2}[${d & 3}]`;
  /** The value of each run of lanes in round r; past the last group lanes have no dims. */
  const perRun = (r: number, text: (d: number) => string, none: string) =>
    Array.from({ length: runs }, (_, i) => (runs * r + i < groups ? text(runs * r + i) : none));
  const columns = (Q: number, r: number) => `{
      ${each(vectors(Q), v => `let units${v} = ${pageFactor(v)} * (${selectByRun(perRun(r, maxStep, '0.0'))} * ${float(2 ** (codes.bits - 8) / 255)});`)}
      ${addColumns(
        Q,
        r,
        lines(r),
        words => words.map(({ top }) => top),
        (n, v) => quantized.at(Q, `${groupOf(r)} * ${P / 4} + ${n}`, v),
        { prefetched: r === 0 },
      )}
    }`;
  return {
    name: `ranges ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    prefetch: tokens => `${each(4, j => read(tokens, j))} ${prefetchStrip(lines(0))}`,
    text: Q => `${quantized.declare(Q)}
fn maxOf4(x: vec4f) -> f32 { return ${maxOf4('x')}; }`,
    declare: Q => each(rounds, r => each(vectors(Q), v => `var correction${r}_${v} = vec4f(0.0);`, ' ')),
    accumulate: (Q, tokens) => `
    ${each(vectors(groups), v => `let max_steps${v} = max(reduce_max(vec4f${vec4Of(groups, v, d => `maxOf4(abs(${steps(d)}))`)}), vec4f(1e-30));`)}
    ${each(groups, d => each(vectors(Q), v => `var lows${d}_${v} = vec4f(0.0);`, ' '))}
    ${quantized.store(
      Q,
      tokens,
      q => probabilities(0, q),
      // Codes count from the middle, so that the dither meets no common part.
      (v, _, d) => `let low = fma(vec4f(${float(middle)}), ${steps(d)}, ${lows(d)});
      lows${d}_${v} = fma(${sumsOfWords}, vec4f(${maxStep(d)} * ${float(-middle / 255)}), vec4f${vec4Of(Q, v, q => `dot(${probabilities(0, q)}, low)`)});`,
      (_, d) => `${steps(d)} * (255.0 / ${maxStep(d)})`,
    )}
    ${each(rounds, r =>
      each(
        vectors(Q),
        v =>
          `{ ${reduceScatterRuns(
            perRun(r, d => `lows${d}_${v}`, 'vec4f(0.0)'),
            'run_sum',
          )} correction${r}_${v} = fma(correction${r}_${v}, ${rescale(v)}, run_sum * ${pageFactor(v)}); }`,
      ),
    )}
    ${each(rounds, r => columns(Q, r))}`,
    finish: Q =>
      each(rounds, r =>
        each(
          vectors(Q),
          v =>
            `${reduceAddRun(`correction${r}_${v}`, runs)} ${each(4, j => `${output(r, j, v)} += correction${r}_${v};`, ' ')}`,
        ),
      ),
  };
}
