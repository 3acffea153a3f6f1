/**
 * Values with a range per token and group of dims (kivi, oscar), as integers. Probabilities are multiplied by the steps
 * of a group, so every group has its own quantized probabilities; what the middles of the ranges add is summed in
 * floats. Ranges stay packed until used, since registers limit how many workgroups run at once.
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { float, maxOf4 } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { roundsOf, type Tokens, type ValueStage, vec4Of } from './attend.ts';
import { addColumns } from './int8-levels.ts';
import { vectors } from './names.ts';
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
  /** The ranges of a lane's token `$j`, as vec4u where aligned. */
  const aligned4 = groups % 4 === 0;
  const read = ({ at }: Tokens) => {
    const first = `((${blockStart('value')} + ${rangesOffset}) / 4 + ${at} * ${groups})`;
    return `@unroll(c, 1) @unroll(j, 4) ${
      aligned4
        ? `@unroll(k, ${groups / 4}) let ranges$j_$k = pool4[${first} / 4 + $k];`
        : `@unroll(k, ${groups}) let ranges$j_$k = pool[${first} + $k];`
    }`;
  };
  /** Of group d: an index of a loop, or a number. */
  const ranges = (d: string) => (aligned4 ? `ranges$j_$(${d} / 4)[$(${d} % 4)]` : `ranges$j_$(${d})`);
  const steps = (d: string) => `vec4f(@list(j, 4, unpack2x16float(${ranges(d)}).y))`;
  const lows = (d: string) => `vec4f(@list(j, 4, unpack2x16float(${ranges(d)}).x))`;
  const maxStep = (d: number | string) => `max_steps$(${d} / 4)[$(${d} % 4)]`;
  /** The value of each run of lanes in round r; past the last group lanes have no dims. */
  const perRun = (r: number, text: (d: number) => string, none: string) =>
    Array.from({ length: runs }, (_, i) => (runs * r + i < groups ? text(runs * r + i) : none));
  const eachRound = (text: (r: number) => string) => Array.from({ length: rounds }, (_, r) => text(r)).join('\n');
  const columns = (Q: number, r: number) => `{
      @unroll(v, ${vectors(Q)}) let units$v = page_factor$v * (${selectByRun(perRun(r, maxStep, '0.0'))} * ${float(2 ** (codes.bits - 8) / 255)});
      ${addColumns(
        Q,
        r,
        lines(r),
        words => words.map(({ top }) => top),
        n => quantized.at(Q, `${groupOf(r)} * ${P / 4} + ${n}`),
        { prefetched: r === 0 },
      )}
    }`;
  return {
    name: `ranges ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    prefetch: tokens => `${read(tokens)} ${prefetchStrip(lines(0))}`,
    text: Q => `${quantized.declare(Q)}
fn maxOf4(x: vec4f) -> f32 { return ${maxOf4('x')}; }`,
    declare: Q => `@unroll(r, ${rounds}) @unroll(v, ${vectors(Q)}) var correction$r_$v = vec4f(0.0);`,
    accumulate: (Q, tokens) => `
    @unroll(v, ${vectors(groups)}) let max_steps$v =
      max(reduce_max(vec4f${vec4Of(groups, `maxOf4(abs(${steps('q')}))`)}), vec4f(1e-30));
    @unroll(d, ${groups}) @unroll(v, ${vectors(Q)}) var lows$d_$v = vec4f(0.0);
    ${quantized.store(Q, tokens, {
      weights: 'prob0_$q',
      by: `${steps('s')} * (255.0 / ${maxStep('s')})`,
      // Codes count from the middle, so that the dither meets no common part.
      after: `let low = fma(vec4f(${float(middle)}), ${steps('s')}, ${lows('s')});
      lows$s_$v = fma(${sumsOfWords}, vec4f(${maxStep('s')} * ${float(-middle / 255)}), vec4f${vec4Of(Q, 'dot(prob0_$q, low)')});`,
    })}
    ${eachRound(
      r => `@unroll(v, ${vectors(Q)}) {{
      ${reduceScatterRuns(
        perRun(r, d => `lows${d}_$v`, 'vec4f(0.0)'),
        'run_sum',
      )}
      correction${r}_$v = fma(correction${r}_$v, rescale$v, run_sum * page_factor$v);
    }}`,
    )}
    ${eachRound(r => columns(Q, r))}`,
    finish: Q => `@unroll(r, ${rounds}) @unroll(v, ${vectors(Q)}) {
    ${reduceAddRun('correction$r_$v', runs)}
    @unroll(j, 4) out$r_$j_$v += correction$r_$v;
  }`,
  };
}
