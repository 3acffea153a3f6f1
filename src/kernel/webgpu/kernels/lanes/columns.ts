/**
 * Hybrids (tq35, tq25) as integers: columns of codes of two tables, and of signs of what is left, which have a factor a token
 * of their own.
 *
 *   keys     a lane reads the words of its four tokens, four dims at a time, turned about so that they meet int8 queries
 *   values   a lane reads the columns of its dims, against weights of 8 bits that have the factors in them
 *
 * A code becomes a byte by its bits: the magnitudes of a symmetric table are sums over them.
 */

import type { Fragment, PageFragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float, turnAbout } from '../text.ts';
import { type KeyPart, of, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { products } from './ints.ts';
import { queryAt, queryText, takeQueries } from './queries.ts';
import { LANES } from './talk.ts';
import { type Lines, walk } from './walk.ts';
import { weighedBytes } from './weighed.ts';

/** Fours of dims that are read before the first of them is used. */
const AHEAD = 4;

type Side = 'key' | 'value';

/** Dims that a grid has, and how its codes become bytes: a number is (byte - zero) x unit x its token's factor. */
interface Run {
  first: number;
  dims: number;
  offset: number;
  bits: number;
  zero: number;
  unit: number;
  /** Dims that a code has, two bits each, if not one. */
  pairs: boolean;
  /** Which factor: of the vector, or of what is left of it. */
  factor: 0 | 1;
  bytes(codes: string): string;
}

const bytes4 = (byte: number) => `0x${byte.toString(16).padStart(2, '0').repeat(4)}u`;

/** Bytes from 1 on, 128 for 0, of codes of an ascending, symmetric table. */
function tableBytes(side: Side, levels: Float32Array): Pick<Run, 'zero' | 'unit' | 'bytes'> {
  const bits = Math.log2(levels.length);
  // A bit, of which halfway is 0.
  if (bits === 1) return { zero: 0.5, unit: 2 * levels[1], bytes: codes => codes };
  const unit = levels[levels.length - 1] / 127;
  const byte = (code: number) => 128 + Math.round(levels[code] / unit);
  if (bits === 2) {
    // The lowest, and what each bit adds.
    const [low, high] = [byte(1) - byte(0), byte(2) - byte(0)];
    return { zero: 128, unit, bytes: codes => `${side}_two(${codes}, ${bytes4(byte(0))}, ${low}u, ${high}u)` };
  }
  // Magnitudes of the upper half; the lower half has them the other way round.
  const [a, b, c, d] = [4, 5, 6, 7].map(code => byte(code) - 128);
  return {
    zero: 128,
    unit,
    bytes: codes =>
      `${side}_three(${codes}, ${bytes4(a)}, ${b - a}u, ${c - a}u, ${d - c - b + a < 0 ? 2 ** 32 + d - c - b + a : d - c - b + a}u)`,
  };
}

const decode = (side: Side) => /* wgsl */ `
fn ${side}_two(codes: u32, least: u32, low: u32, high: u32) -> u32 {
  return least + (codes & 0x01010101u) * low + ((codes >> 1u) & 0x01010101u) * high;
}
fn ${side}_three(codes: u32, least: u32, low: u32, high: u32, both: u32) -> u32 {
  let lower = ((codes >> 2u) & 0x01010101u) ^ 0x01010101u;
  let turned_codes = codes ^ (lower * 3u);
  let x = turned_codes & 0x01010101u;
  let y = (turned_codes >> 1u) & 0x01010101u;
  let size = least + x * low + y * high + (x & y) * both;
  let negative = size & (lower * 255u);
  return 0x80808080u + size - 2u * negative;
}`;

/** Of pages of 128 tokens of 128 dims: the grids, and where their factors are. */
function runsOf(side: Side, fragment: Fragment, { headDim: D, pageTokens: P }: PageShape) {
  const { page, sharedBytes, blockBytes } = fragment;
  if (fragment.turn || D !== 4 * LANES || P !== 4 * LANES) return undefined;
  const tables = tablesOf(page, D);
  if (!tables) return undefined;
  const runs = tables.map(({ codes, first, end, levels }): Run => {
    const { offset, bits } = codes;
    return {
      first,
      dims: end - first,
      offset,
      bits,
      pairs: codes.order === 'pairs',
      factor: 0,
      ...tableBytes(side, levels),
    };
  });
  const scalars = page.kind === 'levels' || page.kind === 'hybrid' ? [page.norms] : [];
  if (page.kind === 'hybrid' && page.residual) {
    const { signs, norms, gain } = page.residual;
    runs.push({
      first: D,
      dims: D,
      offset: signs.offset,
      bits: 1,
      pairs: false,
      factor: 1,
      ...tableBytes(side, Float32Array.of(-gain, gain)),
    });
    scalars.push(norms);
  }
  if (scalars.some(({ bytes, offset }) => bytes !== 2 || offset % 8 !== 0)) return undefined;
  if ([sharedBytes, blockBytes, ...runs.map(({ offset }) => offset)].some(n => n % 16 !== 0)) return undefined;
  return { scalars: scalars.map(({ offset }) => offset), runs };
}

/** Tables of up to eight levels, in columns. */
function tablesOf(page: PageFragment, D: number) {
  if (page.kind === 'hybrid') return page.parts;
  if (page.kind !== 'levels' || page.uniform || page.codes.order === 'rows' || page.codes.bits > 3) return undefined;
  return [{ codes: page.codes, first: 0, end: D, levels: page.levels }];
}

const factors = (side: Side, scalars: readonly number[]) =>
  scalars.map((offset, n) => `let ${side}Factors${n} = four_halves(${side}Block + ${offset} + 8 * lane);`).join(' ');

export function columnKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const kind = runsOf('key', fragment, shape);
  if (!kind || kind.runs.some(({ pairs }) => pairs)) return undefined;
  const { scalars, runs } = kind;
  const C = fragment.codedDim;
  /** The words that have the codes of a lane's tokens in dim i, and these: planes of two bits and of one. */
  const read = ({ bits, dims, offset }: Run, id: string, i: string) => {
    const two = `let ${id}2 = pool[(keyBlock + ${offset}) / 4 + (lane / 16 * ${dims} + ${i}) * 4 + lane % 4];`;
    const one = `let ${id}1 = pool[(keyBlock + ${offset + (bits === 3 ? 32 * dims : 0)}) / 4 + (${i}) * 4 + lane % 4];`;
    return bits === 1 ? one : bits === 2 ? two : `${two} ${one}`;
  };
  const codes = ({ bits }: Run, id: string) => {
    const two = `((${id}2 >> two_shift) & ${bytes4(3)})`;
    const one = `((${id}1 >> one_shift) & ${bytes4(1)})`;
    return bits === 1 ? one : bits === 2 ? two : `(${two} | (${one} << 2u))`;
  };
  const run = (Q: number, one: Run, n: number) => `{
      ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' '))}
      for (var first_four = 0u; first_four < ${one.dims / 4}; first_four += ${AHEAD}) {
        ${each(AHEAD, u => each(4, k => read(one, `w${4 * u + k}_`, `4 * (first_four + ${u}) + ${k}`)))}
        ${each(
          AHEAD,
          u => `{
        ${each(4, k => `let x${k} = ${one.bytes(codes(one, `w${4 * u + k}_`))}${one.zero === 128 ? ' ^ 0x80808080u' : ''};`)}
        ${turnAbout}
        ${each(vectors(Q), v => `let q${v} = ${queryAt(Q, `${one.first / 4} + first_four + ${u}`, v)};`, ' ')}
        ${each(4, j => each(Q, q => `${of(`d${j}_`, q)} += dot4I8Packed(y${j}, ${of('q', q)});`, ' '))} }`,
        )}
      }
      ${each(4, j => each(vectors(Q), v => `all${j}_${v} = fma(vec4f(d${j}_${v})${one.zero === 128 ? '' : ` - ${float(one.zero)} * sums${n}_${v}`}, vec4f(${float(one.unit)} * keyFactors${one.factor}[${j}]), all${j}_${v});`, ' '))}
    }`;
  return {
    name: `columns ${name}`,
    dim: C,
    words: int8Words(C),
    int8: true,
    loaded: C / 4,
    text: Q => `${decode('key')}\n${queryText(Q, C)}`,
    load: Q => `${takeQueries(Q, C)}
  let two_shift = lane % 16 / 4 * 2;
  let one_shift = lane / 4;
  ${runs
    .map(({ first, dims, zero }, n) =>
      zero === 128
        ? ''
        : each(
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
  const { scalars, runs } = kind;
  const { pageTokens: P } = shape;
  const C = fragment.codedDim;
  const sets = scalars.length;
  const weighed = weighedBytes(P, sets);
  const run = (Q: number, { first, dims, offset, bits, pairs, factor, unit, zero, bytes }: Run) => {
    const strips = pairs ? stripsOf(4, P, dims / 2)! : stripsOf(bits, P, dims)!;
    const column = (j: number) => (pairs ? `2 * lane + ${j}` : `lane + ${LANES * j}`);
    const rows = dims / LANES;
    const lines: Lines = {
      strips,
      id: 'c',
      at: `valueBlock + ${offset}`,
      places: Array.from({ length: pairs ? rows / 2 : rows }, (_, j) => column(j)),
    };
    const place = (j: number) => `${Math.floor(first / (4 * LANES))}_${(((first / LANES) | 0) % 4) + j}`;
    return `{
      ${each(rows, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      ${walk(lines, (n, words) =>
        products(
          Q,
          'U',
          words.flatMap(({ codes }) => (pairs ? [`(${codes} & 0x03030303u)`, `(${codes} >> 2u)`] : [codes])).map(bytes),
          (l, q) => of(`d${l}_`, q),
          v => weighed.at(Q, `${factor * (P / 4)} + ${n}`, v),
        ),
      )}
      ${each(vectors(Q), v => `let unit${v} = whole${v} * (most_factor[${factor}] * ${float(unit / 255)});`)}
      ${each(rows, j => each(vectors(Q), v => `o${place(j)}_${v} = fma(vec4f(d${j}_${v}) - ${float(zero)} * byte_sums${factor}_${v}, unit${v}, o${place(j)}_${v} * kept${v});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
    loaded: weighed.loaded,
    room: weighed.room,
    strided: !runs.some(({ pairs }) => pairs),
    fetch: tokens =>
      tokens.strided
        ? scalars
            .map(
              (offset, n) =>
                `let valueFactors${n} = vec4f(${each(4, j => `half(valueBlock + ${offset} + 2 * ${tokens.at(0, j)})`, ', ')});`,
            )
            .join(' ')
        : factors('value', scalars),
    text: Q => `${decode('value')}
${weighed.declare(Q)}
fn most4(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }`,
    sum: (Q, tokens) => `{
    let most_factor = max(largest(vec4f(${each(sets, s => `most4(valueFactors${s})`, ', ')}${', 0.0'.repeat(4 - sets)})), vec4f(1e-30));
    ${each(sets, s => `let shares${s} = valueFactors${s} * (1.0 / most_factor[${s}]);`)}
    ${each(sets, s => each(vectors(Q), v => `var byte_sums${s}_${v} = vec4f(0.0);`, ' '))}
    ${weighed.put(
      Q,
      tokens,
      (q, c, s) => `(w${c}_${q} * shares${s})`,
      (v, _, s) =>
        `byte_sums${s}_${v} = vec4f(vec4u(${each(4, k => `dot4U8Packed(words[${k}], 0x01010101u)`, ', ')}));`,
    )}
    ${each(sets, s => each(vectors(Q), v => `byte_sums${s}_${v} = all_of(byte_sums${s}_${v});`, ' '))}
    ${runs.map(one => run(Q, one)).join('\n')} }`,
  };
}
