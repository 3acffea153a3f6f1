/**
 * Tiles: the keys or values of some tokens of a page, decoded to f16 for subgroup matrices (attend-prompt.ts). A lane
 * decodes some vectors of eight values to registers, and stores them in `space` when their place is free.
 */

import type { PageLayout } from '../../page-layout.ts';
import type { AttendShape } from './attend.ts';
import { pageStart, type Side } from './names.ts';
import { pageReader, type Reader, sequentialDims } from './page-reader.ts';
import { COLUMN_WORDS, encodingTableOffset } from './tables.ts';

export const SUBGROUP_SIZE = 32;

/** Subgroups of a workgroup, and tokens of a tile: a subgroup has the scores of 16 queries and 16 tokens. */
export interface Size {
  subgroups: 16 | 8;
  tokens: 64 | 32;
}

export const workgroupSize = ({ subgroups }: Size): number => subgroups * SUBGROUP_SIZE;

/** How some tokens lie in workgroup memory: by tokens, or by dims, whichever the reader has side by side. */
export interface Tile {
  size: Size;
  side: Side;
  reader: Reader;
  layout: PageLayout;
  dims: number;
  pageTokens: number;
  /** vec4u, of eight values each, per token or dim. */
  stride: number;
  vectors: number;
}

export function tileOf(side: Side, layout: PageLayout, shape: AttendShape, size: Size): Tile {
  const reader = pageReader(side, layout, shape);
  const { codedDim: dims } = layout;
  const [lines, values] = reader.by === 'eight' ? [size.tokens, dims] : [dims, size.tokens];
  const stride = values / 8 + 1;
  return { size, side, reader, layout, dims, pageTokens: shape.pageTokens, stride, vectors: lines * stride };
}

/** The vectors of a tile that a lane decodes, two at a time where it decodes pairs of dims. */
export const vectorsPerLane = ({ size, dims, layout }: Tile): number => {
  const atOnce = layout.encoding.kind === 'additive' ? 2 : 1;
  return atOnce * Math.ceil((size.tokens * dims) / 8 / atOnce / workgroupSize(size));
};

/** `text` for each of them. */
function eachVector(tile: Tile, text: string): string {
  const lanes = workgroupSize(tile.size);
  const all = (tile.dims * tile.size.tokens) / 8;
  const guard = all % lanes === 0 ? '' : `if (lane + $(${lanes} * u) < ${all}) `;
  return `@unroll(u, ${vectorsPerLane(tile)}) ${guard}{{ ${text} }}`;
}

/** Decodes a lane's vectors of tile `number` to `SIDEu`. `scaled`: multiplies them by the scales of their tokens. */
export function decode(tile: Tile, number: string, scaled: boolean): string {
  const { side, reader, layout, dims } = tile;
  const { tokens } = tile.size;
  if (layout.encoding.kind === 'additive') return decodeAdditive(tile, number);
  const call = `${side}_${reader.by}(${pageStart(side)}, head,`;
  const times = (text: string, scale: string) => (scaled ? `${text} * ${scale}` : text);
  const n = `(lane + $(${workgroupSize(tile.size)} * u))`;
  if (reader.by === 'eight')
    return eachVector(
      tile,
      `let t = ${tokens} * (${number}) + ${n} / ${dims / 8};
        let e = ${call} t, ${n} % ${dims / 8});
        let scale = ${side}_scale[t / 4][t % 4];
        ${side}$u = as_f16(${times('e.low', 'scale')}, ${times('e.high', 'scale')});`,
    );
  const four = (g: string) => times(`${call} i, ${g})`, `${side}_scale[${g}]`);
  return eachVector(
    tile,
    `let i = ${n} / ${tokens / 8};
        let g = ${tokens / 4} * (${number}) + 2 * (lane % ${tokens / 8});
        ${side}$u = as_f16(${four('g')}, ${four('g + 1')});`,
  );
}

/** Stores them in workgroup memory. Those of additive pages come in pairs of dims. */
export function store(tile: Tile): string {
  const { side, reader, layout, dims, stride } = tile;
  const { tokens } = tile.size;
  const n = `(lane + $(${workgroupSize(tile.size)} * u))`;
  if (layout.encoding.kind === 'additive')
    return eachPair(
      tile,
      `let line = (2 * (${n} / ${tokens / 8})) * ${stride} + lane % ${tokens / 8};
        space[line] = ${side}$(2 * u);
        space[line + ${stride}] = ${side}$(2 * u + 1);`,
    );
  const line = reader.by === 'eight' ? dims / 8 : tokens / 8;
  return eachVector(tile, `space[${n} / ${line} * ${stride} + ${n} % ${line}] = ${side}$u;`);
}

/** `text` for each pair of neighbouring dims, and eight tokens, that a lane decodes. */
function eachPair(tile: Tile, text: string): string {
  const lanes = workgroupSize(tile.size);
  const all = (tile.dims * tile.size.tokens) / 16;
  const guard = all % lanes === 0 ? '' : `if (lane + $(${lanes} * u) < ${all}) `;
  return `@unroll(u, ${vectorsPerLane(tile) / 2}) ${guard}{{ ${text} }}`;
}

/**
 * Code books of four dims: the codes of eight tokens are nibbles of two of the four words that 32 tokens have
 * (codec/pack.ts), and an entry is a word of four bytes, with 128 for 0 (tables.ts).
 */
function decodeAdditive(tile: Tile, number: string): string {
  const { side, dims, layout, pageTokens } = tile;
  const { tokens } = tile.size;
  const word = (at: string) => `${side}Tables[${encodingTableOffset(layout)} + ${at}]`;
  const column = (k: string) => word(`p.${side}Columns + column * ${COLUMN_WORDS} + ${k}`);
  const packed = (i: number) =>
    `vec4u(${[0, 1, 2, 3].map(j => `pack2x16float(vec2f(e${2 * j}[${i}], e${2 * j + 1}[${i}]))`).join(', ')})`;
  return eachPair(
    tile,
    `let pair = (lane + $(${workgroupSize(tile.size)} * u)) / ${tokens / 8};
        let n = lane % ${tokens / 8};
        let end = ${word(`head * ${dims / 4} + pair / 2 + 1`)};
        @unroll(j, 8) var e$j = vec2f(0.0);
        for (var column = ${word(`head * ${dims / 4} + pair / 2`)}; column < end; column++) {
          let unit = bitcast<f32>(${column('1')});
          let at = (${pageStart(side)} + ${pageTokens / 2} * column) / 8 + 2 * (${tokens / 32} * (${number}) + n / 4);
          let codes = pool2[at + n % 2] >> vec2u(4 * (n % 4 / 2));
          @unroll(j, 8) {{
            let entry = ${column('2 + ((codes[$(j / 4)] >> $(8 * (j % 4))u) & 15u)')} >> (16 * (pair % 2));
            e$j = fma(vec2f(vec2u(entry & 255u, (entry >> 8u) & 255u)) - 128.0, vec2f(unit), e$j);
          }}
        }
        ${side}$(2 * u) = ${packed(0)};
        ${side}$(2 * u + 1) = ${packed(1)};`,
  );
}

/** The dim at place 8 c + 4 half of a decoded vector. */
export const firstDim = ({ reader }: Tile, c: string, half: number): string =>
  (reader.dimOrder ?? sequentialDims).first(c, half);
