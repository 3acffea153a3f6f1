/**
 * Hybrids (tq35, tq25) and tq1, as integers: columns of codes from two code books, and of residual signs, which have a
 * scale per token of their own.
 *
 *   keys     whole lines go to workgroup memory, a chunk at a time, where a lane finds the words of its tokens for four dims
 *            side by side. They are transposed while packed, so that every shifted-out word has four dims for an int8 dot
 *            product. Two lanes share the groups of four dims and exchange in the end: each then has four tokens of all dims
 *   values   a lane reads the columns of its dims, against quantized probabilities that include the token scales
 */

import type { PageEncoding, PageLayout } from '../../../page-layout.ts';
import { type TableBytes, tableBytes } from '../levels.ts';
import { blockStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { each, float, maxOf4, transpose4x4Bytes } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { int8Words } from '../transform.ts';
import { addTerm, type KeyStage, type ValueStage, vec4Of } from './attend.ts';
import { products } from './int8-levels.ts';
import { loadQueries, queryDeclaration, queryWord } from './int8-queries.ts';
import {
  component,
  dots,
  opaque,
  output,
  pageFactor,
  probabilities,
  queryOrigin,
  queryScaleOf,
  rescale,
  SCRATCH,
  vectors,
} from './names.ts';
import { quantizedProbabilities, sumsOfWords } from './quantized-probabilities.ts';
import { type Lines, stripLoop } from './strip-loop.ts';
import { LANES } from './subgroup.ts';

/** Lanes that share the groups of four dims: each owns this many times four tokens. */
const SHARING_LANES = 2;
type Side = 'key' | 'value';

/**
 * A grid of codes: its dims, and how its codes become bytes. A value is (byte - zeroPoint) x scale x the factor of its
 * token.
 */
interface Grid {
  first: number;
  dims: number;
  offset: number;
  bits: number;
  /** Index of the factor: the norm of the vector, or of the residual. */
  factor: 0 | 1;
  bytes: TableBytes;
}

/** The grids of pages of 128 tokens and 128 dims, and the offsets of their factors. */
function gridsOf(side: Side, layout: PageLayout, { headDim: D, pageTokens: P }: PageShape) {
  const { encoding, sharedBytes, blockBytes } = layout;
  if (layout.ropeFrequencies || D !== 4 * LANES || P !== 4 * LANES) return undefined;
  const tables = tablesOf(encoding, D);
  if (!tables) return undefined;
  const { parts, scalars } = tables;
  const grids = parts.flatMap(({ codes, firstDim, endDim, levels, factor }): Grid[] => {
    const bytes = tableBytes(side, levels);
    return bytes
      ? [{ first: firstDim, dims: endDim - firstDim, offset: codes.offset, bits: codes.bits, factor, bytes }]
      : [];
  });
  if (grids.length < parts.length || scalars.some(({ bytes, offset }) => bytes !== 2 || offset % 8 !== 0))
    return undefined;
  if ([sharedBytes, blockBytes, ...grids.map(({ offset }) => offset)].some(n => n % 16 !== 0)) return undefined;
  // Equal declarations once.
  const text = [...new Set(grids.map(({ bytes }) => bytes.text))].join('\n');
  return { scalars: scalars.map(({ offset }) => offset), grids, text };
}

/** Code books in columns; residual signs are a code book of two. */
function tablesOf(page: PageEncoding, D: number) {
  if (page.kind === 'levels' && page.codes.bits === 1 && page.codes.order === 'columns')
    return { parts: [{ ...page, firstDim: 0, endDim: D, factor: 0 as const }], scalars: [page.norms] };
  if (page.kind !== 'hybrid') return undefined;
  const parts = page.parts.map(part => ({ ...part, factor: 0 as 0 | 1 }));
  if (!page.residual) return { parts, scalars: [page.norms] };
  const { signs, norms, gain } = page.residual;
  const signCodes = {
    codes: signs,
    firstDim: D,
    endDim: 2 * D,
    levels: Float32Array.of(-gain, gain),
    factor: 1 as const,
  };
  return { parts: [...parts, signCodes], scalars: [page.norms, norms] };
}

/** Variables of the factors: packed pairs of f16, and unpacked (vec4f). */
const packedFactors = (side: Side, n: number) => `${side}_packed_factors${n}`;
const factorsName = (side: Side, n: number) => `${side}_factors${n}`;

const loadFactors = (side: Side, scalars: readonly number[]) =>
  scalars
    .map((offset, n) => {
      const at = `(${blockStart(side)} + ${offset}) / 4 + 2 * lane`;
      return `let ${packedFactors(side, n)} = vec2u(pool[${at}], pool[${at} + 1]);`;
    })
    .join(' ');

/** Unpacked when needed: packed, they take half the registers. */
const unpackFactors = (side: Side, n: number) =>
  `let ${factorsName(side, n)} = vec4f(unpack2x16float(${packedFactors(side, n)}.x), unpack2x16float(${packedFactors(side, n)}.y));`;

/** The 4 x 4 bytes of four words, transposed. */
const transposeBytes = /* wgsl */ `
fn transpose_bytes(x: vec4u) -> vec4u {
  ${each(4, k => `let x${k} = x[${k}];`, ' ')}
  ${transpose4x4Bytes}
  return vec4u(y0, y1, y2, y3);
}`;

/**
 * Vectors per slot: a slot is 32 lines of 16 bytes, one per lane; in workgroup memory a vector has one word each of
 * four dims.
 */
const SLOT_VECTORS = LANES;

/** What is in workgroup memory at a time. */
interface Chunk {
  /** The first line of every slot, in lines from the start of the block. */
  lines: number[];
  /** The first group of four dims, and how many steps the lanes take. */
  first: number;
  steps: number;
  /** Where the planes of two bits and of one bit begin. */
  twoBitPlane?: string;
  oneBitPlane?: string;
}

function chunksOf({ bits, dims, offset }: Grid): Chunk[] {
  const slots = dims / LANES;
  const range = (from: number, n: number) => Array.from({ length: n }, (_, i) => offset / 16 + from + LANES * i);
  if (bits === 1) return [{ lines: range(0, slots), first: 0, steps: dims / 8, oneBitPlane: '0' }];
  if (bits === 2)
    return [{ lines: range(0, 2 * slots), first: 0, steps: dims / 8, twoBitPlane: `${SLOT_VECTORS * slots} * upper` }];
  return Array.from({ length: slots }, (_, c) => ({
    lines: [LANES * c, dims + LANES * c, 2 * dims + LANES * c].map(n => offset / 16 + n),
    first: (LANES / 4) * c,
    steps: LANES / 8,
    twoBitPlane: `${SLOT_VECTORS} * upper`,
    oneBitPlane: `${2 * SLOT_VECTORS}`,
  }));
}

export function hybridKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const kind = gridsOf('key', layout, shape);
  if (!kind) return undefined;
  const { scalars, grids, text } = kind;
  const C = layout.codedDim;
  const sets = scalars.length;
  const maxLines = Math.max(...grids.flatMap(chunksOf).map(({ lines }) => lines.length));
  const loadLines = (chunk: Chunk | undefined, i: number) =>
    chunk?.lines
      .map((line, k) => `let line${i}_${k} = pool4[${blockStart('key')} / 16 + ${line} + lane];`)
      .join('\n') ?? '';
  const put = ({ lines }: Chunk, i: number) => `
      workgroupBarrier();
      ${lines.map((_, k) => each(4, s => `${SCRATCH}[${SLOT_VECTORS * k} + to${s}][lane % 4] = line${i}_${k}[${s}];`, ' ')).join('\n')}
      workgroupBarrier();`;
  // With the modulo compilers know that it is in bounds. Quarters are interleaved to avoid bank conflicts.
  const four = (base: string, steps: number) =>
    `${SCRATCH}[${base} + 8 * (dim_step % ${steps}) + 4 * sharer + (quarter + dim_step) % 4]`;
  const sumGrid = (Q: number, grid: Grid) => {
    // For 1-bit codes the byte is the bit in place, which is the same in all words of a lane.
    const word = (s: number, j: number) =>
      grid.bits === 1
        ? `(high[${j}] & mask${s})`
        : grid.bytes.join(`(low[${j}] >> two${s})`, `((high[${j}] >> bit${s}) & 0x01010101u)`);
    const dot = (j: number, v: number) =>
      `(bitcast<vec4f>(d0_${j}_${v}) - 12582912.0)${grid.bits === 1 ? ' * bit_unit' : ''}`;
    const chunks = chunksOf(grid);
    // Sums begin at the bits of 1.5 x 2^23, whose lowest bits are integers: bitcast to float, they need no conversion.
    return `{
    ${loadLines(chunks[0], 0)}
    ${each(SHARING_LANES, s => each(4, j => each(vectors(Q), v => `var d${s}_${j}_${v} = vec4i(${s === 0 ? '0x4b400000' : 0});`, ' ')))}
    ${chunks
      .map(
        ({ first, steps, twoBitPlane, oneBitPlane }, i) => `
    ${put(chunks[i], i)}
    ${loadLines(chunks[i + 1], i + 1)}
    for (var dim_step = 0u; dim_step < ${opaque(steps)}; dim_step++) {
      ${twoBitPlane ? `let low = transpose_bytes(${four(twoBitPlane, steps)});` : ''}
      ${oneBitPlane ? `let high = transpose_bytes(${four(oneBitPlane, steps)});` : ''}
      ${each(vectors(Q), v => `let q${v} = ${queryWord(Q, `${grid.first / 4 + first} + ${SHARING_LANES} * (dim_step % ${steps}) + sharer`, v)};`, ' ')}
      ${each(SHARING_LANES, s => each(4, j => `{ let c = ${word(s, j)}; ${each(Q, q => `${component(`d${s}_${j}_`, q)} += dot4I8Packed(c, ${component('q', q)});`, ' ')} }`))}
    }`,
      )
      .join('\n')}
    ${unpackFactors('key', grid.factor)}
    ${each(4, j => each(vectors(Q), v => `d0_${j}_${v} += bitcast<vec4i>(shuffle_xor(bitcast<vec4f>(d1_${j}_${v}), 4u));`, ' '))}
    ${each(4, j => each(vectors(Q), v => `all${j}_${v} = fma(${dot(j, v)}, vec4f(${float(grid.bytes.scale)} * ${factorsName('key', grid.factor)}[${j}]), all${j}_${v});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
    queryWords: int8Words(C),
    int8: true,
    scratchVectors: () => SLOT_VECTORS * maxLines,
    text: Q => `${text}
${transposeBytes}
${queryDeclaration(Q, C)}`,
    // A lane owns tokens 64 upper + 16 s + 4 quarter + 0 to 3: two values of s at first, one in the end.
    load: Q => `${loadQueries(Q, C)}
  let upper = lane / 16 % 2;
  let quarter = lane % 4;
  let sharer = lane / 4 % 2;
  ${each(SHARING_LANES, s => `let bit${s} = (lane / 4) ^ ${s}u; let two${s} = bit${s} % 4 * 2; let mask${s} = 0x01010101u << bit${s};`)}
  let bit_unit = select(1.0 / f32(1u << bit0), -1.0 / 128.0, bit0 == 7);
  ${each(4, s => `let to${s} = lane / 4 % 8 * 4 + (${s} + lane / 8) % 4;`)}
  ${each(sets, f => each(vectors(Q), v => `var middle${f}_${v} = vec4f(0.0);`, ' '))}
  ${grids
    .map(({ first, dims, factor, bytes }) =>
      each(
        vectors(Q),
        v =>
          `middle${factor}_${v} += reduce_add(select(vec4f(0.0), vec4f(vec4i${vec4Of(Q, v, q => `dot4I8Packed(queries[${queryOrigin(q)} + ${first / 4} + lane % ${dims / 4}], 0x01010101u)`)}), lane < ${dims / 4})) * ${float(-bytes.zeroPoint * bytes.scale)};`,
      ),
    )
    .join('\n')}`,
    loadConstants: () => loadFactors('key', scalars),
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var all${j}_${v} = vec4f(0.0);`, ' '))}
    ${grids.map(grid => sumGrid(Q, grid)).join('\n')}
    ${each(sets, f => `{ ${unpackFactors('key', f)} ${each(4, j => each(vectors(Q), v => `all${j}_${v} = fma(middle${f}_${v}, vec4f(${factorsName('key', f)}[${j}]), all${j}_${v});`, ' '))} }`)}
    ${each(Q, q => `let ${dots(0, q)} = vec4f(${each(4, j => component(`all${j}_`, q), ', ')});`)}`,
    score: (q, _, plus) => addTerm(`${dots(0, q)} * vec4f(${queryScaleOf(q)})`, plus),
  };
}

export function hybridValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const kind = gridsOf('value', layout, shape);
  if (!kind) return undefined;
  const { scalars, grids, text } = kind;
  const { pageTokens: P } = shape;
  const C = layout.codedDim;
  const sets = scalars.length;
  const quantized = quantizedProbabilities(P, sets);
  const place = ({ first }: Grid, j: number, v: number) =>
    output(Math.floor(first / (4 * LANES)), (((first / LANES) | 0) % 4) + j, v);
  const sumGrid = (Q: number, grid: Grid) => {
    const { dims, offset, bits, factor, bytes } = grid;
    // A single grid is short enough to unroll.
    const strips = stripsOf(bits, P, dims, grids.length > 1)!;
    const rows = dims / LANES;
    const lines: Lines = {
      strips,
      id: 'c',
      at: `${blockStart('value')} + ${offset}`,
      lineIndices: Array.from({ length: rows }, (_, j) => `lane + ${LANES * j}`),
    };
    // Sums begin at the bits of 2^23, which none exceeds.
    return `{
      ${each(rows, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0x4b000000u);`, ' '))}
      ${stripLoop(lines, (n, words) =>
        products(
          Q,
          'U',
          words.map(bytes.of),
          (l, q) => component(`d${l}_`, q),
          v => quantized.at(Q, `${factor * (P / 4)} + ${n}`, v),
        ),
      )}
      ${each(vectors(Q), v => `let unit${v} = ${pageFactor(v)} * (max_factor[${factor}] * ${float(bytes.scale / 255)});`)}
      ${each(rows, j => each(vectors(Q), v => `${place(grid, j, v)} = fma(bitcast<vec4f>(d${j}_${v}) - 8388608.0, unit${v}, ${place(grid, j, v)} * ${rescale(v)});`, ' '))}
    }`;
  };
  return {
    name: `columns ${name}`,
    dim: C,
    scratchVectors: quantized.scratchVectors,
    strided: true,
    loadConstants: tokens =>
      tokens.strided
        ? scalars
            .map(
              (offset, n) =>
                `let ${factorsName('value', n)} = vec4f(${each(4, j => `read_f16(${blockStart('value')} + ${offset} + 2 * ${tokens.at(0, j)})`, ', ')});`,
            )
            .join(' ')
        : loadFactors('value', scalars),
    text: Q => `${text}
${quantized.declare(Q)}`,
    declare: Q => each(sets, s => each(vectors(Q), v => `var correction${s}_${v} = vec4f(0.0);`, ' ')),
    accumulate: (Q, tokens) => `{
    ${tokens.strided ? '' : each(sets, s => unpackFactors('value', s))}
    let max_factor = max(reduce_max(vec4f(${each(sets, s => maxOf4(factorsName('value', s)), ', ')}${', 0.0'.repeat(4 - sets)})), vec4f(1e-30));
    ${each(sets, s => `let shares${s} = ${factorsName('value', s)} * (1.0 / max_factor[${s}]);`)}
    ${quantized.store(
      Q,
      tokens,
      (q, c, s) => `(${probabilities(c, q)} * shares${s})`,
      (v, _, s) =>
        `correction${s}_${v} = fma(correction${s}_${v}, ${rescale(v)}, ${sumsOfWords} * (${pageFactor(v)} * max_factor[${s}]));`,
    )}
    ${grids.map(grid => sumGrid(Q, grid)).join('\n')} }`,
    finish: Q => `
    ${each(sets, s => each(vectors(Q), v => `correction${s}_${v} = reduce_add(correction${s}_${v});`, ' '))}
    ${grids.map(grid => each(grid.dims / LANES, j => each(vectors(Q), v => `${place(grid, j, v)} -= correction${grid.factor}_${v} * ${float((grid.bytes.zeroPoint * grid.bytes.scale) / 255)};`, ' '))).join('\n')}`,
  };
}
