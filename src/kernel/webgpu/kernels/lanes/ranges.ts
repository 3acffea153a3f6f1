/**
 * Values with a range a token and group of dims (kivi, oscar) as integers. Weights are multiplied by the steps of a group, so
 * every group has bytes of its own; what the middles of the ranges add is summed as floats. Ranges stay as they are read, a
 * word each, until they are used, since registers decide how many workgroups run at once.
 */

import type { Fragment } from '../../../fragment.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float, most4 } from '../text.ts';
import { roundsOf, type Tokens, type ValuePart, vectorOf, vectors } from './attend.ts';
import { addColumns } from './ints.ts';
import { dealt, LANES, ofRun, overRun } from './talk.ts';
import { askFor, type Lines } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

export function rangeValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const { page, sharedBytes, blockBytes } = fragment;
  if (page.kind !== 'affine' || page.axis !== 'token' || page.codes.order !== 'columns' || page.norms) return undefined;
  const { codes, group, ranges } = page;
  const strips = stripsOf(codes.bits, P, D);
  const aligned = [sharedBytes, blockBytes, codes.offset, ranges].every(n => n % 16 === 0);
  // A lane has four tokens, and four dims of one group; so many groups have lanes side by side.
  const runs = (4 * LANES) / group;
  if (!strips || !aligned || P !== 4 * LANES || D % group !== 0 || !Number.isInteger(Math.log2(runs))) return undefined;
  const groups = D / group;
  const rounds = roundsOf(D);
  const middle = (2 ** codes.bits - 1) / 2;
  const weighed = weighedBytes(P, groups);
  const groupOf = (r: number) => `(lane / ${LANES / runs} + ${runs * r})`;
  const lines = (r: number): Lines => ({
    strips,
    id: `c${r}_`,
    at: `valueBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].map(j => `min(4 * lane + ${4 * LANES * r + j}, ${D - 1}u)`),
  });
  /** The words of a lane's token j, in vectors of four where they lie so. */
  const wide = groups % 4 === 0;
  const read = ({ at }: Tokens, j: number) => {
    const first = `((valueBlock + ${ranges}) / 4 + ${at(0, j)} * ${groups})`;
    return wide
      ? each(groups / 4, k => `let ranges${j}_${k} = pool4[${first} / 4 + ${k}];`, ' ')
      : each(groups, d => `let ranges${j}_${d} = pool[${first} + ${d}];`, ' ');
  };
  const range = (d: number, j: number) => (wide ? `ranges${j}_${d >> 2}[${d & 3}]` : `ranges${j}_${d}`);
  const steps = (d: number) => `vec4f(${each(4, j => `unpack2x16float(${range(d, j)}).y`, ', ')})`;
  const lows = (d: number) => `vec4f(${each(4, j => `unpack2x16float(${range(d, j)}).x`, ', ')})`;
  const most = (d: number) => `most_steps${d >> 2}[${d & 3}]`;
  /** What each run of lanes has in round r; beyond the last group no lane has dims. */
  const ofRuns = (r: number, text: (d: number) => string, none: string) =>
    Array.from({ length: runs }, (_, i) => (runs * r + i < groups ? text(runs * r + i) : none));
  const columns = (Q: number, r: number) => `{
      ${each(vectors(Q), v => `let units${v} = whole${v} * (${ofRun(ofRuns(r, most, '0.0'))} * ${float(2 ** (codes.bits - 8) / 255)});`)}
      ${addColumns(
        Q,
        r,
        lines(r),
        words => words.map(({ top }) => top),
        (n, v) => weighed.at(Q, `${groupOf(r)} * ${P / 4} + ${n}`, v),
        { asked: r === 0 },
      )}
    }`;
  return {
    name: `ranges ${name}`,
    dim: D,
    room: weighed.room,
    ask: tokens => `${each(4, j => read(tokens, j))} ${askFor(lines(0))}`,
    text: Q => `${weighed.declare(Q)}
fn most4(x: vec4f) -> f32 { return ${most4('x')}; }`,
    declare: Q => each(rounds, r => each(vectors(Q), v => `var more${r}_${v} = vec4f(0.0);`, ' ')),
    sum: (Q, tokens) => `
    ${each(vectors(groups), v => `let most_steps${v} = max(largest(vec4f${vectorOf(groups, v, d => `most4(abs(${steps(d)}))`)}), vec4f(1e-30));`)}
    ${each(groups, d => each(vectors(Q), v => `var lows${d}_${v} = vec4f(0.0);`, ' '))}
    ${weighed.put(
      Q,
      tokens,
      q => `w0_${q}`,
      // Codes count from their middle, so that what rounds the weights meets no common part.
      (v, _, d) => `let low = fma(vec4f(${float(middle)}), ${steps(d)}, ${lows(d)});
      lows${d}_${v} = fma(${sumOfBytes}, vec4f(${most(d)} * ${float(-middle / 255)}), vec4f${vectorOf(Q, v, q => `dot(w0_${q}, low)`)});`,
      (_, d) => `${steps(d)} * (255.0 / ${most(d)})`,
    )}
    ${each(rounds, r =>
      each(
        vectors(Q),
        v =>
          `{ ${dealt(
            ofRuns(r, d => `lows${d}_${v}`, 'vec4f(0.0)'),
            'own',
          )} more${r}_${v} = fma(more${r}_${v}, kept${v}, own * whole${v}); }`,
      ),
    )}
    ${each(rounds, r => columns(Q, r))}`,
    result: Q =>
      each(rounds, r =>
        each(
          vectors(Q),
          v => `${overRun(`more${r}_${v}`, runs)} ${each(4, j => `o${r}_${j}_${v} += more${r}_${v};`, ' ')}`,
        ),
      ),
  };
}
