/**
 * Evenly spaced codes multiplied as integers, four at a time (dot4I8Packed, dot4U8Packed).
 *
 *   keys     in rows: four dims in a word, against an int8 query
 *   values   in columns: four tokens in a word, against weights of 8 bits, of which the page's largest is 255
 *
 * A code is a byte that its level is a line of. What the offset adds is the same for all tokens (or dims) and is added once.
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float } from '../text.ts';
import { type KeyPart, of, roundsOf, type Tokens, type ValuePart, vectorOf, vectors } from './attend.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { askFor, type Lines, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

type Levels = PageFragment & { kind: 'levels' };
type Affine = PageFragment & { kind: 'affine' };

const aligned = ({ sharedBytes, blockBytes }: Fragment, offset: number) =>
  [sharedBytes, blockBytes, offset].every(n => n % 16 === 0);

/** Evenly spaced levels and norms that lines can be read of. */
function levelsOf(fragment: Fragment, order: 'rows' | 'columns'): Levels | undefined {
  const { page } = fragment;
  if (page.kind !== 'levels' || !page.uniform || page.codes.order !== order || page.norms.bytes !== 2) return undefined;
  return aligned(fragment, page.codes.offset) && page.norms.offset % 8 === 0 ? page : undefined;
}

/** Norms of a lane's tokens. */
const fetchNorms = (side: 'key' | 'value', offset: number, P: number) => (tokens: Tokens) =>
  each(roundsOf(P), c =>
    tokens.strided
      ? `let ${side}Norms${c} = vec4f(${each(4, j => `half(${side}Block + ${offset} + 2 * min(${tokens.at(c, j)}, ${P - 1}u))`, ', ')});`
      : `let ${side}Norms${c} = four_halves(${side}Block + ${offset} + 8 * min(lane + ${LANES * c}, ${P / 4 - 1}u));`,
  );

/** Products of four codes of every line with a word that all lanes share, for all queries. */
export const products = (
  Q: number,
  sign: 'I' | 'U',
  lines: readonly string[],
  sum: (l: number, q: number) => string,
  shared: (v: number) => string,
): string => `${each(vectors(Q), v => `let by${v} = ${shared(v)};`, ' ')}
      ${lines.map((codes, l) => `{ let c = ${codes}; ${each(Q, q => `${sum(l, q)} += dot4${sign}8Packed(c, ${of('by', q)});`, ' ')} }`).join(' ')}`;

/** Rows: a lane reads those of its tokens, four at a time. */
export function intKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'rows');
  const strips = page && stripsOf(page.codes.bits, D, P);
  if (!page || !strips || fragment.turn || P % 4 !== 0) return undefined;
  const { codes, norms, levels } = page;
  const step = 2 * levels[0];
  // Two's complement at the top of a byte: an int8 that is 2^(8 - bits) as large. A byte of 0 is half a step.
  const unit = step / 2 ** (8 - codes.bits);
  const lines = (c: number): Lines => ({
    strips,
    id: `k${c}_`,
    at: `keyBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].map(j => `min(lane + ${LANES * c}, ${P / 4 - 1}u) + ${(P / 4) * j}`),
  });
  const dots = (Q: number, c: number) => `
    ${each(4, j => each(vectors(Q), v => `var d${c}_${j}_${v} = vec4i(0);`, ' '))}
    ${walk(lines(c), (n, words) =>
      products(
        Q,
        'I',
        words.map(({ top }) => top),
        (l, q) => of(`d${c}_${l}_`, q),
        v => queryAt(Q, n, v),
      ),
    )}
    ${each(Q, q => `let dots${c}_${q} = vec4f(vec4i(${each(4, j => of(`d${c}_${j}_`, q), ', ')}));`)}`;
  return {
    name: `int ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    loaded: D / 4 + 4,
    text: Q => queryText(Q, D),
    load: Q => `${takeQueries(Q, D)}
  ${each(vectors(Q), v => `let unit${v} = scale${v} * ${float(unit)}; let middle${v} = scale${v} * sums${v} * ${float(step / 2)};`)}`,
    fetch: fetchNorms('key', norms.offset, P),
    sums: Q => each(roundsOf(P), c => dots(Q, c)),
    score: (q, c, plus) =>
      `fma(keyNorms${c}, fma(dots${c}_${q}, vec4f(${of('unit', q)}), vec4f(${of('middle', q)})), ${plus ?? 'vec4f(0.0)'})`,
    constant: v => `constants${v}`,
  };
}

/** How the values of a page are scaled: what the weights of dims in group d are multiplied by, and what they add. */
interface Scaled {
  /** A level is its byte times `unit`, plus `offset`; codes are turned by `flip` to make bytes. */
  unit: number;
  offset: number;
  flip: number;
  codes: { bits: number; offset: number };
  fetch(tokens: Tokens): string;
  /** Factors of the tokens of chunk c, where all dims have the same. */
  factor?(c: number): string;
  /** Ranges otherwise: so many groups of so many dims, their steps, and what is added under the weights as they are. */
  ranges?: { groups: number; group: number; step(d: number, c: number): string; low(d: number, c: number): string };
}

function scaledOf(fragment: Fragment, { headDim: D, pageTokens: P }: PageShape): Scaled | undefined {
  const { page } = fragment;
  if (page.kind === 'affine') return rangesOf(fragment, page, D, P);
  const levels = levelsOf(fragment, 'columns');
  if (!levels) return undefined;
  const { codes } = levels;
  const [step, half] = [2 * levels.levels[0], 2 ** (codes.bits - 1)];
  return {
    unit: step,
    offset: (0.5 - half) * step,
    flip: half,
    codes,
    fetch: fetchNorms('value', levels.norms.offset, P),
    factor: c => `valueNorms${c}`,
  };
}

/** A range a token and group of dims: weights are multiplied by its step, and its minimum added to the sums. */
function rangesOf(
  fragment: Fragment,
  { codes, group, axis, ranges, norms }: Affine,
  D: number,
  P: number,
): Scaled | undefined {
  if (axis !== 'token' || codes.order !== 'columns' || norms || ranges % 4 !== 0) return undefined;
  // A lane has four dims of one group.
  if (!aligned(fragment, codes.offset) || group % 4 !== 0) return undefined;
  const groups = D / group;
  const middle = (2 ** codes.bits - 1) / 2;
  return {
    // Codes count from their middle, so that what rounds the weights meets no common part.
    unit: 1,
    offset: -middle,
    flip: 0,
    codes,
    fetch: tokens =>
      each(
        roundsOf(P),
        c => `${each(4, j => `let ranges${c}_${j} = (valueBlock + ${ranges}) / 4 + min(${tokens.at(c, j)}, ${P - 1}u) * ${groups};`, ' ')}
    ${each(groups, d => `${each(4, j => `let range${d}_${c}_${j} = unpack2x16float(pool[ranges${c}_${j} + ${d}]);`, ' ')} let step${d}_${c} = vec4f(${each(4, j => `range${d}_${c}_${j}.y`, ', ')}); let low${d}_${c} = fma(vec4f(${float(middle)}), step${d}_${c}, vec4f(${each(4, j => `range${d}_${c}_${j}.x`, ', ')}));`)}`,
      ),
    ranges: { groups, group, step: (d, c) => `step${d}_${c}`, low: (d, c) => `low${d}_${c}` },
  };
}

export function intValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const scaled = scaledOf(fragment, shape);
  const strips = scaled && stripsOf(scaled.codes.bits, P, D);
  if (!scaled || !strips) return undefined;
  const { unit, offset, flip, codes, factor, ranges } = scaled;
  const { groups, group } = ranges ?? { groups: 1, group: D };
  const weighed = weighedBytes(P, groups);
  const rounds = roundsOf(D);
  /** Of a lane's dims in round r: their group, and what it has. */
  const groupOf = (r: number) => `((4 * lane + ${128 * r}) / ${group})`;
  const ofGroup = (r: number, text: (d: number) => string) =>
    Array.from({ length: groups }, (_, d) => text(d)).reduce(
      (all, one, d) => `select(${all}, ${one}, ${groupOf(r)} == ${d})`,
    );
  const flipped = flip === 0 ? '' : ` ^ 0x${flip.toString(16).padStart(2, '0').repeat(4)}u`;
  // Columns side by side are for lanes side by side, unless a lane then had dims of several groups.
  const strided = groups === 1;
  const column = (r: number, j: number) =>
    strided ? `(lane + ${4 * LANES * r + LANES * j})` : `(4 * lane + ${4 * LANES * r + j})`;
  const lines = (r: number): Lines => ({
    strips,
    id: `c${r}_`,
    at: `valueBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].map(j => `min(${column(r, j)}, ${D - 1}u)`),
  });
  const columns = (Q: number, r: number) => `
      ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      ${walk(
        lines(r),
        (n, words) =>
          products(
            Q,
            'U',
            words.map(({ codes }) => `${codes}${flipped}`),
            (l, q) => of(`d${l}_`, q),
            v => weighed.at(Q, `${groups > 1 ? `${groupOf(r)} * ${P / 4} + ` : ''}${n}`, v),
          ),
        r === 0,
      )}
      ${each(4, j => each(vectors(Q), v => `o${r}_${j}_${v} = fma(vec4f(d${j}_${v}), units${v}, o${r}_${j}_${v} * kept${v});`, ' '))}`;
  const most = (d: number) => `most_steps${d >> 2}[${d & 3}]`;
  const steps = (d: number) =>
    Array.from({ length: roundsOf(P) }, (_, c) => `abs(${ranges!.step(d, c)})`).reduce((a, b) => `max(${a}, ${b})`);
  // The largest step of a group's tokens, and what share of it each has.
  const survey = ranges
    ? `${each(vectors(groups), v => `let most_steps${v} = max(largest(vec4f${vectorOf(groups, v, d => `most4(${steps(d)})`)}), vec4f(1e-30));`)}
    ${each(groups, d => `let whole_share${d} = 1.0 / ${most(d)}; ${each(roundsOf(P), c => `let share${d}_${c} = ${ranges.step(d, c)} * whole_share${d};`, ' ')}`)}`
    : '';
  return {
    name: `int ${name}`,
    dim: D,
    loaded: weighed.loaded,
    room: weighed.room,
    factor,
    fetch: tokens => `${scaled.fetch(tokens)} ${askFor(lines(0))}`,
    strided,
    text: Q => `${weighed.declare(Q)}
fn most4(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }`,
    declare: Q => each(groups, d => each(vectors(Q), v => `var more${d}_${v} = vec4f(0.0);`, ' ')),
    sum: (Q, tokens) => `${survey}
    ${each(groups, d => each(vectors(Q), v => `var added${d}_${v} = vec4f(0.0);`, ' '))}
    ${weighed.put(
      Q,
      tokens,
      (q, c, d) => (ranges ? `(w${c}_${q} * share${d}_${c})` : `w${c}_${q}`),
      (v, _, d) =>
        ranges
          ? `added${d}_${v} = fma(${sumOfBytes}, vec4f(${most(d)} * ${float(offset / 255)}), added${d}_${v});`
          : `added${d}_${v} += ${sumOfBytes} * ${float(offset / 255)};`,
    )}
    ${ranges ? each(roundsOf(P), c => each(groups, d => each(vectors(Q), v => `added${d}_${v} += vec4f${vectorOf(Q, v, q => `dot(w${c}_${q}, ${ranges.low(d, c)})`)};`, ' '))) : ''}
    ${each(groups, d => each(vectors(Q), v => `more${d}_${v} = fma(more${d}_${v}, kept${v}, added${d}_${v} * whole${v});`, ' '))}
    ${each(
      rounds,
      r => `{
      ${each(vectors(Q), v => `let units${v} = whole${v} * ${float(unit / 255)}${ranges ? ` * ${ofGroup(r, most)}` : ''};`)}
      ${columns(Q, r)}
    }`,
    )}`,
    result: Q => `
  ${each(groups, d => each(vectors(Q), v => `more${d}_${v} = all_of(more${d}_${v});`, ' '))}
  ${each(rounds, r => each(vectors(Q), v => `{ let more = ${ofGroup(r, d => `more${d}_${v}`)}; ${each(4, j => `o${r}_${j}_${v} += more;`, ' ')} }`))}`,
  };
}
