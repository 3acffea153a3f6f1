/**
 * Hybrids (tq35, tq25) as integers: columns of codes of two tables, and of signs of what is left, which have a factor a token
 * of their own.
 *
 *   keys     a lane has tokens of every other four dims: words of four tokens are turned about as they are, so that what is
 *            shifted out of them has four dims, which meet int8 queries. In the end lanes swap, so that each has four tokens
 *            of all dims
 *   values   a lane reads the columns of its dims, against weights of 8 bits that have the factors in them
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import { type TableBytes, tableBytes } from '../levels.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float, most4, turnAbout } from '../text.ts';
import { type KeyPart, of, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { products } from './ints.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { type Lines, walk } from './walk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

/** Fours of dims that are read before the first of them is used. */
const AHEAD = 4;
/** Lanes that share the fours: each has so many times four tokens. */
const WAYS = 2;

type Side = 'key' | 'value';

/** Dims that a grid has, and how its codes become bytes: a number is (byte - middle) x unit x its token's factor. */
interface Run {
  first: number;
  dims: number;
  offset: number;
  bits: number;
  /** Which factor: of the vector, or of what is left of it. */
  factor: 0 | 1;
  bytes: TableBytes;
}

/** Of pages of 128 tokens of 128 dims: the grids, and where their factors are. */
function runsOf(side: Side, fragment: Fragment, { headDim: D, pageTokens: P }: PageShape) {
  const { page, sharedBytes, blockBytes } = fragment;
  if (fragment.turn || D !== 4 * LANES || P !== 4 * LANES) return undefined;
  const tables = tablesOf(page, D);
  if (!tables) return undefined;
  const { parts, scalars } = tables;
  const runs = parts.flatMap(({ codes, first, end, levels, factor }): Run[] => {
    const bytes = tableBytes(side, levels);
    return bytes ? [{ first, dims: end - first, offset: codes.offset, bits: codes.bits, factor, bytes }] : [];
  });
  if (runs.length < parts.length || scalars.some(({ bytes, offset }) => bytes !== 2 || offset % 8 !== 0))
    return undefined;
  if ([sharedBytes, blockBytes, ...runs.map(({ offset }) => offset)].some(n => n % 16 !== 0)) return undefined;
  // Texts of tables that are alike are there once.
  const text = [...new Set(runs.map(({ bytes }) => bytes.text))].join('\n');
  return { scalars: scalars.map(({ offset }) => offset), runs, text };
}

/** Tables in columns; signs of what is left are a table of two. */
function tablesOf(page: PageFragment, D: number) {
  if (page.kind === 'levels' && page.codes.bits === 1 && page.codes.order === 'columns')
    return { parts: [{ ...page, first: 0, end: D, factor: 0 as const }], scalars: [page.norms] };
  if (page.kind !== 'hybrid') return undefined;
  const parts = page.parts.map(part => ({ ...part, factor: 0 as 0 | 1 }));
  if (!page.residual) return { parts, scalars: [page.norms] };
  const { signs, norms, gain } = page.residual;
  const left = { codes: signs, first: D, end: 2 * D, levels: Float32Array.of(-gain, gain), factor: 1 as const };
  return { parts: [...parts, left], scalars: [page.norms, norms] };
}

const factors = (side: Side, scalars: readonly number[]) =>
  scalars.map((offset, n) => `let ${side}Factors${n} = four_halves(${side}Block + ${offset} + 8 * lane);`).join(' ');

export function columnKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const kind = runsOf('key', fragment, shape);
  if (!kind) return undefined;
  const { scalars, runs, text } = kind;
  const C = fragment.codedDim;
  /** Of planes of two bits and of one, where the words of dim i are that have the codes of a lane's tokens. */
  const planesOf = ({ bits, dims, offset }: Run) => {
    const twos = (i: string) => `(keyBlock + ${offset}) / 4 + (upper * ${dims} + ${i}) * 4 + side`;
    const ones = (i: string) => `(keyBlock + ${offset + (bits === 3 ? 32 * dims : 0)}) / 4 + (${i}) * 4 + side`;
    return bits === 1 ? [ones] : bits === 2 ? [twos] : [twos, ones];
  };
  const run = (Q: number, one: Run, n: number) => {
    const planes = planesOf(one);
    const turns = one.dims / 4 / WAYS;
    const ahead = Math.min(AHEAD, turns);
    const all = (text: (u: number, p: number, k: number) => string) =>
      each(ahead, u => planes.map((_, p) => each(4, k => text(u, p, k), ' ')).join(' '));
    const load = (u: number, p: number, k: number, turn: string) =>
      `pool[${planes[p](`4 * (${WAYS} * (${turn} + ${u}) + way) + ${k}`)}]`;
    // Of single bits that are all, the byte is the bit where it is, which is the same in all of a lane's words.
    const word = (s: number, j: number) =>
      one.bits === 1
        ? `(t0_${j} & (0x01010101u << bit${s}))`
        : one.bytes.join(`(t0_${j} >> two${s})`, `((t1_${j} >> bit${s}) & 0x01010101u)`);
    const dot = (j: number, v: number) => `vec4f(d0_${j}_${v})${one.bits === 1 ? ' * bit_unit' : ''}`;
    return `{
      ${each(WAYS, s => each(4, j => each(vectors(Q), v => `var d${s}_${j}_${v} = vec4i(0);`, ' ')))}
      ${all((u, p, k) => `var next${u}_${p}_${k} = ${load(u, p, k, '0u')};`)}
      for (var turn = 0u; turn < ${turns} / 4 * p.four; turn += ${ahead}) {
        ${all((u, p, k) => `let w${u}_${p}_${k} = next${u}_${p}_${k};`)}
        ${ahead < turns ? all((u, p, k) => `next${u}_${p}_${k} = ${load(u, p, k, `min(turn + ${ahead}, ${turns - ahead}u)`)};`) : ''}
        ${each(
          ahead,
          u => `{
        ${planes.map((_, p) => `${each(4, j => `var t${p}_${j}: u32;`, ' ')} { ${each(4, k => `let x${k} = w${u}_${p}_${k};`, ' ')} ${turnAbout} ${each(4, j => `t${p}_${j} = y${j};`, ' ')} }`).join('\n')}
        ${each(vectors(Q), v => `let q${v} = ${queryAt(Q, `${one.first / 4} + ${WAYS} * (turn + ${u}) + way`, v)};`, ' ')}
        ${each(WAYS, s => each(4, j => `{ let c = ${word(s, j)}; ${each(Q, q => `${of(`d${s}_${j}_`, q)} += dot4I8Packed(c, ${of('q', q)});`, ' ')} }`))} }`,
        )}
      }
      ${each(4, j => each(vectors(Q), v => `d0_${j}_${v} += bitcast<vec4i>(across(bitcast<vec4f>(d1_${j}_${v}), 4u));`, ' '))}
      ${each(4, j => each(vectors(Q), v => `all${j}_${v} = fma(${dot(j, v)} - ${float(one.bytes.middle)} * sums${n}_${v}, vec4f(${float(one.bytes.unit)} * keyFactors${one.factor}[${j}]), all${j}_${v});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
    words: int8Words(C),
    int8: true,
    loaded: C / 4,
    text: Q => `${text}\n${queryText(Q, C)}`,
    // A lane has tokens 64 upper + 16 s + 4 side + 0 to 3, for two s at first, for its own in the end.
    load: Q => `${takeQueries(Q, C)}
  let upper = lane / 16;
  let side = lane % 4;
  let way = lane / 4 % 2;
  ${each(WAYS, s => `let bit${s} = (lane / 4) ^ ${s}u; let two${s} = bit${s} % 4 * 2;`)}
  let bit_unit = select(1.0 / f32(1u << bit0), -1.0 / 128.0, bit0 == 7);
  ${runs
    .map(({ first, dims }, n) =>
      each(
        vectors(Q),
        v => `var own${n}_${v} = vec4f(0.0);
  for (var n = ${first / 4} + lane; n < ${(first + dims) / 4}; n += ${LANES}) { own${n}_${v} += vec4f(vec4i${vectorOf(Q, v, q => `dot4I8Packed(queries[origin${q} + n], 0x01010101u)`)}); }
  let sums${n}_${v} = all_of(own${n}_${v});`,
      ),
    )
    .join('\n')}`,
    fetch: () => factors('key', scalars),
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var all${j}_${v} = vec4f(0.0);`, ' '))}
    ${runs.map((one, n) => run(Q, one, n)).join('\n')}
    ${each(Q, q => `let dots0_${q} = vec4f(${each(4, j => of(`all${j}_`, q), ', ')});`)}`,
    score: (q, _, plus) => withPlus(`dots0_${q} * vec4f(${of('scale', q)})`, plus),
    constant: v => `constants${v}`,
  };
}

export function columnValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const kind = runsOf('value', fragment, shape);
  if (!kind) return undefined;
  const { scalars, runs, text } = kind;
  const { pageTokens: P } = shape;
  const C = fragment.codedDim;
  const sets = scalars.length;
  const weighed = weighedBytes(P, sets);
  const run = (Q: number, { first, dims, offset, bits, factor, bytes }: Run) => {
    // One run alone is little text.
    const strips = stripsOf(bits, P, dims, runs.length > 1)!;
    const rows = dims / LANES;
    const lines: Lines = {
      strips,
      id: 'c',
      at: `valueBlock + ${offset}`,
      places: Array.from({ length: rows }, (_, j) => `lane + ${LANES * j}`),
    };
    const place = (j: number) => `${Math.floor(first / (4 * LANES))}_${(((first / LANES) | 0) % 4) + j}`;
    return `{
      ${each(rows, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      ${walk(lines, (n, words) =>
        products(
          Q,
          'U',
          words.map(bytes.of),
          (l, q) => of(`d${l}_`, q),
          v => weighed.at(Q, `${factor * (P / 4)} + ${n}`, v),
        ),
      )}
      ${each(vectors(Q), v => `let unit${v} = whole${v} * (most_factor[${factor}] * ${float(bytes.unit / 255)});`)}
      ${each(rows, j => each(vectors(Q), v => `o${place(j)}_${v} = fma(vec4f(d${j}_${v}) - ${float(bytes.middle)} * byte_sums${factor}_${v}, unit${v}, o${place(j)}_${v} * kept${v});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
    loaded: weighed.loaded,
    room: weighed.room,
    strided: true,
    fetch: tokens =>
      tokens.strided
        ? scalars
            .map(
              (offset, n) =>
                `let valueFactors${n} = vec4f(${each(4, j => `half(valueBlock + ${offset} + 2 * ${tokens.at(0, j)})`, ', ')});`,
            )
            .join(' ')
        : factors('value', scalars),
    text: Q => `${text}
${weighed.declare(Q)}`,
    sum: (Q, tokens) => `{
    let most_factor = max(largest(vec4f(${each(sets, s => most4(`valueFactors${s}`), ', ')}${', 0.0'.repeat(4 - sets)})), vec4f(1e-30));
    ${each(sets, s => `let shares${s} = valueFactors${s} * (1.0 / most_factor[${s}]);`)}
    ${each(sets, s => each(vectors(Q), v => `var byte_sums${s}_${v} = vec4f(0.0);`, ' '))}
    ${weighed.put(
      Q,
      tokens,
      (q, c, s) => `(w${c}_${q} * shares${s})`,
      (v, _, s) => `byte_sums${s}_${v} = ${sumOfBytes};`,
    )}
    ${each(sets, s => each(vectors(Q), v => `byte_sums${s}_${v} = all_of(byte_sums${s}_${v});`, ' '))}
    ${runs.map(one => run(Q, one)).join('\n')} }`,
  };
}
