/**
 * Code grids (codec/pack.ts) in WGSL: reads the code of a token and dim from the bytes of a page, and writes those
 * bytes.
 */
import type { CodeGrid } from '../../page-layout.ts';
import { repeatByte } from './snippets.ts';
import { rowIndexInStrip } from './strips.ts';

interface Plane {
  width: number;
  /** Offset from the start of the grid. */
  offset: number;
  bytes: number;
  /** Position of its bits in a code. */
  shift: number;
  /** Bytes per line and strip; absent where there are no strips and lines follow each other. */
  stripBytes?: number;
  lines: number;
  length: number;
}

export interface GridShape extends CodeGrid {
  tokens: number;
  dims: number;
}

/** A grid of pairs is a grid of nibbles with half the dims. */
const nibbles = (grid: GridShape): GridShape => ({
  ...grid,
  bits: 4,
  dims: Math.ceil(grid.dims / 2),
  order: 'columns',
});

function planesOf({ bits, order, tokens, dims }: GridShape): Plane[] {
  const [lines, length] = order === 'rows' ? [tokens, dims] : [dims, tokens];
  let [offset, shift] = [0, 0];
  return [16, 8, 4, 2, 1]
    .filter(width => bits & width)
    .map(width => {
      const lineBytes = (length * width) / 8;
      const hasStrips = width < 8 && Number.isInteger(lineBytes);
      const stripBytes = hasStrips ? Math.min(16, lineBytes & -lineBytes) : undefined;
      const bytes = Math.ceil((lines * length * width) / 8);
      const plane = { width, offset, bytes, shift, stripBytes, lines, length };
      offset += bytes;
      shift += width;
      return plane;
    });
}

const lineIndexInStrip = ({ order, tokens }: GridShape, line: string) =>
  order === 'rows' ? rowIndexInStrip(line, tokens) : line;

export const gridBytes = (grid: GridShape): number =>
  planesOf(grid.order === 'pairs' ? nibbles(grid) : grid).reduce((sum, { bytes }) => sum + bytes, 0);

/**
 * `fn NAME(block: u32, t: u32, i: u32) -> u32`: the code of token t and dim i. Calls `read_byte(at)`; `block` is the offset
 * of the head's block.
 */
export function readGrid(name: string, grid: GridShape): string {
  if (grid.order === 'pairs') {
    return `${readGrid(`${name}_pair`, nibbles(grid))}
fn ${name}(block: u32, t: u32, i: u32) -> u32 { return (${name}_pair(block, t, i / 2) >> (2 * (i & 1))) & 3; }`;
  }
  const terms = planesOf(grid).map(({ width, offset, shift, stripBytes, lines, length }) => {
    const at = `block + ${grid.offset + offset}`;
    const n = `(line * ${length} + at)`;
    const mask = 2 ** width - 1;
    if (width === 16) return `(read_byte(${at} + 2 * ${n}) | (read_byte(${at} + 2 * ${n} + 1) << 8)) << ${shift}`;
    if (!stripBytes)
      return `((read_byte(${at} + ${n} * ${width} / 8) >> ((${n} * ${width}) & 7)) & ${mask}) << ${shift}`;
    const codes = (stripBytes * 8) / width;
    const within = `(at % ${codes})`;
    const byte = `read_byte(${at} + (at / ${codes} * ${lines} + ${lineIndexInStrip(grid, 'line')}) * ${stripBytes} + ${within} % ${stripBytes})`;
    return `((${byte} >> (${within} / ${stripBytes} * ${width})) & ${mask}) << ${shift}`;
  });
  const [line, at] = grid.order === 'rows' ? ['t', 'i'] : ['i', 't'];
  return /* wgsl */ `
fn ${name}(block: u32, t: u32, i: u32) -> u32 {
  let line = ${line};
  let at = ${at};
  return ${terms.map(term => `(${term})`).join(' | ')};
}`;
}

/**
 * `fn NAME(block: u32, line: u32, n: u32) -> vec4u`: codes 4 n to 4 n + 3 of a line. Undefined unless they lie in whole
 * words of pages whose blocks begin at multiples of four bytes.
 */
export function readFour(name: string, grid: GridShape): string | undefined {
  if (grid.order === 'pairs') {
    const pairs = readFour(`${name}_pairs`, nibbles(grid));
    const body = `return (${name}_pairs(block, line / 2, n) >> vec4u(2 * (line & 1))) & vec4u(3);`;
    return pairs && `${pairs}\nfn ${name}(block: u32, line: u32, n: u32) -> vec4u { ${body} }`;
  }
  if (grid.bits > 8) return undefined;
  const terms: string[] = [];
  for (const { width, offset, shift, stripBytes, lines, length } of planesOf(grid)) {
    const start = grid.offset + offset;
    if (start % 4 !== 0 || (length * width) % 32 !== 0) return undefined;
    const word = (at: string) => `pool[(block + ${start}) / 4 + ${at}]`;
    if (width === 8) {
      terms.push(`(${word(`line * ${length / 4} + n`)} << ${shift})`);
    } else {
      const words = stripBytes! / 4;
      const codes = (words * 8) / width;
      const place = `(n / ${codes} * ${lines} + ${lineIndexInStrip(grid, 'line')}) * ${words} + n % ${words}`;
      const bits = `(${word(place)} >> (n % ${codes} / ${words} * ${width}))`;
      terms.push(`((${bits} & ${repeatByte(2 ** width - 1)}) << ${shift})`);
    }
  }
  return `fn ${name}(block: u32, line: u32, n: u32) -> vec4u { return unpack4xU8(${terms.join(' | ')}); }`;
}

/** `fn NAME(n: u32, head: u32) -> u32`: byte n of the grid, of codes from `code(head, t, i)`. */
export function writeGrid(name: string, grid: GridShape, code: string): string {
  if (grid.order === 'pairs') {
    const pair = `${name}_pair`;
    const odd =
      grid.dims % 2 === 1
        ? `select(0u, ${code}(head, t, 2 * i + 1), 2 * i + 1 < ${grid.dims})`
        : `${code}(head, t, 2 * i + 1)`;
    return `fn ${pair}(head: u32, t: u32, i: u32) -> u32 { return ${code}(head, t, 2 * i) | (${odd} << 2); }
${writeGrid(name, nibbles(grid), pair)}`;
  }
  const get = (line: string, at: string) =>
    grid.order === 'rows' ? `${code}(head, ${line}, ${at})` : `${code}(head, ${at}, ${line})`;
  const planes = planesOf(grid).map(({ width, offset, bytes, shift, stripBytes, lines, length }) => {
    const mask = 2 ** width - 1;
    const count = 8 / width;
    const body = stripBytes
      ? `let place = m / ${stripBytes} % ${lines};
    let line = ${grid.order === 'rows' && grid.tokens % 4 === 0 ? `place % ${lines / 4} * 4 + place / ${lines / 4}` : 'place'};
    var value = 0u;
    for (var k = 0u; k < ${count}; k++) {
      let at = m / ${stripBytes * lines} * ${stripBytes * count} + k * ${stripBytes} + m % ${stripBytes};
      value |= ((${get('line', 'at')} >> ${shift}) & ${mask}) << (k * ${width});
    }
    return value;`
      : width === 16
        ? `let at = m / 2; return (${get(`at / ${length}`, `at % ${length}`)} >> (${shift} + 8 * (m & 1))) & 255;`
        : `var value = 0u;
    for (var k = 0u; k < ${count}; k++) {
      let at = m * ${count} + k;
      if (at < ${grid.tokens * grid.dims}) { value |= ((${get(`(at / ${length})`, `(at % ${length})`)} >> ${shift}) & ${mask}) << (k * ${width}); }
    }
    return value;`;
    return `if (n < ${offset + bytes}) { let m = n - ${offset}; ${body} }`;
  });
  return `fn ${name}(n: u32, head: u32) -> u32 {\n  ${planes.join('\n  ')}\n  return 0;\n}`;
}
