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
import { type KeyPart, of, roundsOf, type Tokens, type ValuePart, vectors } from './attend.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { askFor, type Lines, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

type Levels = PageFragment & { kind: 'levels' };

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

export function intValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const page = levelsOf(fragment, 'columns');
  const strips = page && stripsOf(page.codes.bits, P, D);
  if (!page || !strips) return undefined;
  const { codes, norms, levels } = page;
  // A level is its code times the step, plus the offset; codes are at the top of their bytes.
  const step = 2 * levels[0];
  const offset = (0.5 - 2 ** (codes.bits - 1)) * step;
  const unit = step / 2 ** (8 - codes.bits);
  const weighed = weighedBytes(P);
  const rounds = roundsOf(D);
  const lines = (r: number): Lines => ({
    strips,
    id: `c${r}_`,
    at: `valueBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].map(j => `min(lane + ${4 * LANES * r + LANES * j}, ${D - 1}u)`),
  });
  const columns = (Q: number, r: number) => `
      ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      ${walk(
        lines(r),
        (n, words) =>
          products(
            Q,
            'U',
            words.map(({ top }) => top),
            (l, q) => of(`d${l}_`, q),
            v => weighed.at(Q, n, v),
          ),
        { asked: r === 0, flipped: true },
      )}
      ${each(4, j => each(vectors(Q), v => `o${r}_${j}_${v} = fma(vec4f(d${j}_${v}), units${v}, o${r}_${j}_${v} * kept${v});`, ' '))}`;
  return {
    name: `int ${name}`,
    dim: D,
    loaded: weighed.loaded,
    room: weighed.room,
    factor: c => `valueNorms${c}`,
    fetch: tokens => `${fetchNorms('value', norms.offset, P)(tokens)} ${askFor(lines(0))}`,
    // Columns side by side are for lanes side by side.
    strided: true,
    text: Q => weighed.declare(Q),
    declare: Q => each(vectors(Q), v => `var more${v} = vec4f(0.0);`, ' '),
    sum: (Q, tokens) => `
    ${each(vectors(Q), v => `var added${v} = vec4f(0.0);`, ' ')}
    ${weighed.put(
      Q,
      tokens,
      (q, c) => `w${c}_${q}`,
      v => `added${v} += ${sumOfBytes} * ${float(offset / 255)};`,
    )}
    ${each(vectors(Q), v => `more${v} = fma(more${v}, kept${v}, added${v} * whole${v});`, ' ')}
    ${each(
      rounds,
      r => `{
      ${each(vectors(Q), v => `let units${v} = whole${v} * ${float(unit / 255)};`)}
      ${columns(Q, r)}
    }`,
    )}`,
    result: Q => `
  ${each(vectors(Q), v => `more${v} = all_of(more${v});`, ' ')}
  ${each(rounds, r => each(vectors(Q), v => each(4, j => `o${r}_${j}_${v} += more${v};`, ' ')))}`,
  };
}
