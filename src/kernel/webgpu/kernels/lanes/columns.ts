/**
 * Hybrids (tq35, tq25) and tq1 as integers: columns of codes of two tables, and of signs of what is left, which have a factor a
 * token of their own.
 *
 *   keys     come by whole lines into workgroup memory, a chunk at a time, where a lane finds the words of its tokens of four
 *            dims side by side. They are turned about as they are, so that what is shifted out of them has four dims, which
 *            meet int8 queries. Two lanes share the fours of dims; in the end they swap, so that each has four tokens of all
 *            dims
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

/** Lanes that share the fours of dims: each has so many times four tokens. */
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
  scalars
    .map((offset, n) => {
      const at = `(${side}Block + ${offset}) / 4 + 2 * lane`;
      return `let ${side}Halves${n} = vec2u(pool[${at}], pool[${at} + 1]);`;
    })
    .join(' ');

/** As floats, when they are needed: until then they take half as many registers. */
const unpacked = (side: Side, n: number) =>
  `let ${side}Factors${n} = vec4f(unpack2x16float(${side}Halves${n}.x), unpack2x16float(${side}Halves${n}.y));`;

/** Four bytes of each of four words, turned about. */
const turned = /* wgsl */ `
fn turned(x: vec4u) -> vec4u {
  ${each(4, k => `let x${k} = x[${k}];`, ' ')}
  ${turnAbout}
  return vec4u(y0, y1, y2, y3);
}`;

/** Lines of 16 bytes, one a lane, and the vectors that they become: of four dims, the words of one side (of four). */
const SLOT = LANES;

/** What is in workgroup memory at a time. */
interface Chunk {
  /** The first line of every slot, in lines from the block's start on. */
  lines: number[];
  /** The first four of the run's dims, and by how many turns lanes take them. */
  first: number;
  turns: number;
  /** Where planes of two bits and of one begin. */
  twos?: string;
  ones?: string;
}

function chunksOf({ bits, dims, offset }: Run): Chunk[] {
  const slots = dims / LANES;
  const range = (from: number, n: number) => Array.from({ length: n }, (_, i) => offset / 16 + from + LANES * i);
  if (bits === 1) return [{ lines: range(0, slots), first: 0, turns: dims / 8, ones: '0' }];
  if (bits === 2) return [{ lines: range(0, 2 * slots), first: 0, turns: dims / 8, twos: `${SLOT * slots} * upper` }];
  return Array.from({ length: slots }, (_, c) => ({
    lines: [LANES * c, dims + LANES * c, 2 * dims + LANES * c].map(n => offset / 16 + n),
    first: (LANES / 4) * c,
    turns: LANES / 8,
    twos: `${SLOT} * upper`,
    ones: `${2 * SLOT}`,
  }));
}

export function columnKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const kind = runsOf('key', fragment, shape);
  if (!kind) return undefined;
  const { scalars, runs, text } = kind;
  const C = fragment.codedDim;
  const sets = scalars.length;
  const most = Math.max(...runs.flatMap(chunksOf).map(({ lines }) => lines.length));
  const ask = (chunk: Chunk | undefined, i: number) =>
    chunk?.lines.map((line, k) => `let line${i}_${k} = pool4[keyBlock / 16 + ${line} + lane];`).join('\n') ?? '';
  const put = ({ lines }: Chunk, i: number) => `
      workgroupBarrier();
      ${lines.map((_, k) => each(4, s => `room[${SLOT * k} + to${s}][lane % 4] = line${i}_${k}[${s}];`, ' ')).join('\n')}
      workgroupBarrier();`;
  // Said this way a compiler knows that it is within the room. Sides are dealt so that lanes write to banks of their own.
  const four = (base: string, turns: number) => `room[${base} + 8 * (turn % ${turns}) + 4 * way + (side + turn) % 4]`;
  const run = (Q: number, one: Run) => {
    // Of single bits that are all, the byte is the bit where it is, which is the same in all of a lane's words.
    const word = (s: number, j: number) =>
      one.bits === 1
        ? `(high[${j}] & mask${s})`
        : one.bytes.join(`(low[${j}] >> two${s})`, `((high[${j}] >> bit${s}) & 0x01010101u)`);
    const dot = (j: number, v: number) =>
      `(bitcast<vec4f>(d0_${j}_${v}) - 12582912.0)${one.bits === 1 ? ' * bit_unit' : ''}`;
    const chunks = chunksOf(one);
    // Sums begin at the bits of 1.5 x 2^23, whose lowest bits are integers: as floats they need no conversion.
    return `{
    ${ask(chunks[0], 0)}
    ${each(WAYS, s => each(4, j => each(vectors(Q), v => `var d${s}_${j}_${v} = vec4i(${s === 0 ? '0x4b400000' : 0});`, ' ')))}
    ${chunks
      .map(
        ({ first, turns, twos, ones }, i) => `
    ${put(chunks[i], i)}
    ${ask(chunks[i + 1], i + 1)}
    for (var turn = 0u; turn < ${turns} * p.four / 4; turn++) {
      ${twos ? `let low = turned(${four(twos, turns)});` : ''}
      ${ones ? `let high = turned(${four(ones, turns)});` : ''}
      ${each(vectors(Q), v => `let q${v} = ${queryAt(Q, `${one.first / 4 + first} + ${WAYS} * (turn % ${turns}) + way`, v)};`, ' ')}
      ${each(WAYS, s => each(4, j => `{ let c = ${word(s, j)}; ${each(Q, q => `${of(`d${s}_${j}_`, q)} += dot4I8Packed(c, ${of('q', q)});`, ' ')} }`))}
    }`,
      )
      .join('\n')}
    ${unpacked('key', one.factor)}
    ${each(4, j => each(vectors(Q), v => `d0_${j}_${v} += bitcast<vec4i>(across(bitcast<vec4f>(d1_${j}_${v}), 4u));`, ' '))}
    ${each(4, j => each(vectors(Q), v => `all${j}_${v} = fma(${dot(j, v)}, vec4f(${float(one.bytes.unit)} * keyFactors${one.factor}[${j}]), all${j}_${v});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
    words: int8Words(C),
    int8: true,
    room: () => SLOT * most,
    text: Q => `${text}
${turned}
${queryText(Q, C)}`,
    // A lane has tokens 64 upper + 16 s + 4 side + 0 to 3, for two s at first, for its own in the end.
    load: Q => `${takeQueries(Q, C)}
  let upper = lane / 16 % 2;
  let side = lane % 4;
  let way = lane / 4 % 2;
  ${each(WAYS, s => `let bit${s} = (lane / 4) ^ ${s}u; let two${s} = bit${s} % 4 * 2; let mask${s} = 0x01010101u << bit${s};`)}
  let bit_unit = select(1.0 / f32(1u << bit0), -1.0 / 128.0, bit0 == 7);
  ${each(4, s => `let to${s} = lane / 4 % 8 * 4 + (${s} + lane / 8) % 4;`)}
  ${each(sets, f => each(vectors(Q), v => `var middle${f}_${v} = vec4f(0.0);`, ' '))}
  ${runs
    .map(({ first, dims, factor, bytes }) =>
      each(
        vectors(Q),
        v =>
          `middle${factor}_${v} += all_of(select(vec4f(0.0), vec4f(vec4i${vectorOf(Q, v, q => `dot4I8Packed(queries[origin${q} + ${first / 4} + lane % ${dims / 4}], 0x01010101u)`)}), lane < ${dims / 4})) * ${float(-bytes.middle * bytes.unit)};`,
      ),
    )
    .join('\n')}`,
    fetch: () => factors('key', scalars),
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var all${j}_${v} = vec4f(0.0);`, ' '))}
    ${runs.map(one => run(Q, one)).join('\n')}
    ${each(sets, f => `{ ${unpacked('key', f)} ${each(4, j => each(vectors(Q), v => `all${j}_${v} = fma(middle${f}_${v}, vec4f(keyFactors${f}[${j}]), all${j}_${v});`, ' '))} }`)}
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
  const place = ({ first }: Run, j: number) => `${Math.floor(first / (4 * LANES))}_${(((first / LANES) | 0) % 4) + j}`;
  const run = (Q: number, one: Run) => {
    const { dims, offset, bits, factor, bytes } = one;
    // One run alone is little text.
    const strips = stripsOf(bits, P, dims, runs.length > 1)!;
    const rows = dims / LANES;
    const lines: Lines = {
      strips,
      id: 'c',
      at: `valueBlock + ${offset}`,
      places: Array.from({ length: rows }, (_, j) => `lane + ${LANES * j}`),
    };
    // Sums begin at the bits of 2^23, and none is as large as that.
    return `{
      ${each(rows, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0x4b000000u);`, ' '))}
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
      ${each(rows, j => each(vectors(Q), v => `o${place(one, j)}_${v} = fma(bitcast<vec4f>(d${j}_${v}) - 8388608.0, unit${v}, o${place(one, j)}_${v} * kept${v});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
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
    declare: Q => each(sets, s => each(vectors(Q), v => `var more${s}_${v} = vec4f(0.0);`, ' ')),
    sum: (Q, tokens) => `{
    ${tokens.strided ? '' : each(sets, s => unpacked('value', s))}
    let most_factor = max(largest(vec4f(${each(sets, s => most4(`valueFactors${s}`), ', ')}${', 0.0'.repeat(4 - sets)})), vec4f(1e-30));
    ${each(sets, s => `let shares${s} = valueFactors${s} * (1.0 / most_factor[${s}]);`)}
    ${weighed.put(
      Q,
      tokens,
      (q, c, s) => `(w${c}_${q} * shares${s})`,
      (v, _, s) => `more${s}_${v} = fma(more${s}_${v}, kept${v}, ${sumOfBytes} * (whole${v} * most_factor[${s}]));`,
    )}
    ${runs.map(one => run(Q, one)).join('\n')} }`,
    result: Q => `
    ${each(sets, s => each(vectors(Q), v => `more${s}_${v} = all_of(more${s}_${v});`, ' '))}
    ${runs.map(one => each(one.dims / LANES, j => each(vectors(Q), v => `o${place(one, j)}_${v} -= more${one.factor}_${v} * ${float((one.bytes.middle * one.bytes.unit) / 255)};`, ' '))).join('\n')}`,
  };
}
