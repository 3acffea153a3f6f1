/** The last step of sealing: packs codes and scalars into the bytes of a page (codec/ documents the layout). */

import { type PageLayout, type ScalarArray, tracksError } from '../../page-layout.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { type GridShape, gridBytes, writeGrid } from './grid.ts';
import { oakenScalars, SIZE } from './seal-learned.ts';
import type { PageShape } from './shape.ts';
import { encodingTableOffset } from './tables.ts';

/** Norms, ranges, block scales or squared errors. */
export function scalarsPerHead({ encoding }: PageLayout, { headDim, pageTokens: P }: PageShape): number {
  if (encoding.kind === 'levels') return P;
  if (encoding.kind === 'hybrid') return 2 * P;
  if (encoding.kind === 'affine') return P + (2 * headDim * P) / encoding.groupSize;
  if (encoding.kind === 'oaken') return oakenScalars(headDim, P).all;
  if (encoding.kind === 'spectrum' || tracksError(encoding)) return P;
  return (P * headDim) / 32;
}

/** Words per page in the table of a dispatch: place of its tail's slots, start, first coded row, rotation, place of the page. */
export const WORDS_PER_REQUEST = 5;

/** Words of the scratch buffers that a page has: vectors, codes and scalars. */
export function wordsPerPage(layout: PageLayout, shape: PageShape): { y: number; codes: number; scalars: number } {
  const values = shape.kvHeads * shape.pageTokens * shape.headDim;
  return { y: values, codes: 2 * values, scalars: shape.kvHeads * scalarsPerHead(layout, shape) };
}

/** A kernel for one page becomes one for page `group.z` of several, each with its own part of the scratch buffers. */
export function ofEveryPage(body: string, layout: PageLayout, shape: PageShape): string {
  const words = wordsPerPage(layout, shape);
  const indexed = body
    .replaceAll(/\b(y|codes|scalars)\[/g, (_, name: keyof typeof words) => `${name}[page * ${words[name]} + `)
    .replace(/fn main\((\w+): vec3u, lane: u32\) \{/, (main, group) => `${main}\n  page = ${group}.z;`);
  return `var<private> page: u32;\n${indexed}`;
}

/** One word of a page per invocation. */
export function pack(id: string, layout: PageLayout, pageBytes: number, shape: PageShape): Kernel {
  const { headDim: D, pageTokens: P } = shape;
  const { sharedBytes, blockBytes, encoding } = layout;
  const S = scalarsPerHead(layout, shape);
  const { text, fields } = pageFields(layout, pageBytes, shape, S);
  const shared = fields.filter(({ shared }) => shared);
  const perHead = fields.filter(({ shared }) => !shared);
  const selectField = (candidates: Field[], n: string) =>
    candidates
      .map(
        ({ offset, bytes, at }) =>
          `if (${n} >= ${offset} && ${n} < ${offset + bytes}) { return ${at(`(${n} - ${offset})`)}; }`,
      )
      .join('\n  ');
  return {
    name: `pack ${id} ${pageBytes}`,
    summary: 'Sealing, step 3: packs codes and scalars into the bytes of a page.',
    params: u32('table'),
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('codes', 'u32'),
      readBuffer('scalars', 'u32'),
      ...(encoding.kind === 'mixed' ? [readBuffer('tables', 'u32')] : []),
      writeBuffer('pool', 'u32'),
    ],
    size: SIZE,
    body: ofEveryPage(
      /* wgsl */ `
fn code(head: u32, t: u32, i: u32) -> u32 { return codes[(head * ${P} + t) * ${encoding.kind === 'hybrid' ? 2 * D : D} + i]; }
fn scalar2(n: u32, at: u32) -> u32 { return (scalars[at + n / 2] >> (8 * (n & 1))) & 255; }
fn scalar4(n: u32, at: u32) -> u32 { return (scalars[at + n / 4] >> (8 * (n & 3))) & 255; }
${text}
fn page_byte(n: u32) -> u32 {
  if (n >= ${pageBytes}) { return 0; }
  let head = 0u;
  ${selectField(shared, 'n')}
  ${blockBytes > 0 ? `return block_byte((n - ${sharedBytes}) % ${blockBytes}, (n - ${sharedBytes}) / ${blockBytes});` : 'return 0;'}
}
fn block_byte(n: u32, head: u32) -> u32 {
  ${selectField(perHead, 'n')}
  return 0;
}
fn main(group: vec3u, lane: u32) {
  let word = group.x * ${SIZE} + lane;
  if (4 * word >= ${pageBytes}) { return; }
  var value = 0u;
  for (var k = 0u; k < 4; k++) { value |= page_byte(4 * word + k) << (8 * k); }
  pool[data[p.table + page * ${WORDS_PER_REQUEST} + 4] / 4 + word] = value;
}`,
      layout,
      shape,
    ),
  };
}

interface Field {
  offset: number;
  bytes: number;
  shared?: boolean;
  /** WGSL for byte n of the field; `head` is in scope. */
  at(n: string): string;
}

function pageFields(
  layout: PageLayout,
  pageBytes: number,
  { headDim: D, kvHeads, pageTokens: P }: PageShape,
  S: number,
): { text: string; fields: Field[] } {
  const scalars = ({ offset, bytes }: ScalarArray, from = 0): Field => ({
    offset,
    bytes: P * bytes,
    at: n => `scalar${bytes}(${n}, head * ${S} + ${from})`,
  });
  const grid = (name: string, codes: GridShape, code = 'code') => ({
    text: writeGrid(name, codes, code),
    field: { offset: codes.offset, bytes: gridBytes(codes), at: (n: string) => `${name}(${n}, head)` },
  });
  const { encoding } = layout;
  switch (encoding.kind) {
    case 'f16':
    case 'fp8': {
      const bits = encoding.kind === 'f16' ? 16 : 8;
      const { text, field } = grid('values', { offset: 0, bits, order: 'rows', tokens: P, dims: D });
      return { text, fields: [field] };
    }
    case 'q8_0':
    case 'q4_0': {
      const size = encoding.kind === 'q8_0' ? 34 : 18;
      const codes =
        encoding.kind === 'q8_0' ? 'codes[first + r - 2]' : 'codes[first + r - 2] | (codes[first + r + 14] << 4)';
      const text = `fn blocks(n: u32, head: u32) -> u32 {
  let b = head * ${(P * D) / 32} + n / ${size};
  let r = n % ${size};
  let first = 32 * b;
  if (r < 2) { return scalar2(r, b); }
  return ${codes};
}`;
      return { text, fields: [{ offset: 0, bytes: (P * D * size) / 32, at: n => `blocks(${n}, head)` }] };
    }
    case 'levels': {
      const { text, field } = grid('levels', { ...encoding.codes, tokens: P, dims: D });
      return { text, fields: [field, scalars(encoding.norms)] };
    }
    case 'hybrid': {
      const partGrids = encoding.parts.map(({ codes, firstDim, endDim }, n) => {
        const name = `part${n}`;
        const { text, field } = grid(name, { ...codes, tokens: P, dims: endDim - firstDim }, `${name}_code`);
        return {
          text: `fn ${name}_code(head: u32, t: u32, i: u32) -> u32 { return code(head, t, i + ${firstDim}); }\n${text}`,
          field,
        };
      });
      const fields = [...partGrids.map(({ field }) => field), scalars(encoding.norms)];
      const texts = partGrids.map(({ text }) => text);
      if (encoding.residual) {
        const { text, field } = grid('signs', { ...encoding.residual.signs, tokens: P, dims: D }, 'sign_code');
        texts.push(`fn sign_code(head: u32, t: u32, i: u32) -> u32 { return code(head, t, i + ${D}); }\n${text}`);
        fields.push(field, scalars(encoding.residual.norms, P));
      }
      return { text: texts.join('\n'), fields };
    }
    case 'affine': {
      const { text, field } = grid('affine', { ...encoding.codes, tokens: P, dims: D });
      const ranges: Field = {
        offset: encoding.rangesOffset,
        bytes: (4 * D * P) / encoding.groupSize,
        at: n => `scalar2(${n}, head * ${S} + ${P})`,
      };
      const { norms } = encoding;
      return { text, fields: [field, ranges, ...(norms ? [{ ...scalars(norms), shared: norms.per === 'page' }] : [])] };
    }
    case 'additive': {
      // Each column is a grid.
      const code = `fn code_of(column: u32, t: u32, i: u32) -> u32 { return codes[column * ${P} + t]; }`;
      const column = { offset: 0, bits: 4, order: 'columns', tokens: P, dims: 1 } as const;
      const bytes = gridBytes(column);
      const at = (n: string) => `column(${n} % ${bytes}, ${n} / ${bytes})`;
      return {
        text: `${code}\n${writeGrid('column', column, 'code_of')}`,
        fields: [{ offset: 0, bytes: pageBytes, at, shared: true }],
      };
    }
    case 'mixed': {
      const planes = [4, 2, 1].map(bits => {
        const plane = { offset: 0, bits, order: 'columns', tokens: P, dims: 1 } as const;
        return { bits, bytes: gridBytes(plane), text: writeGrid(`plane${bits}`, plane, `plane${bits}_code`) };
      });
      const text = /* wgsl */ `
var<private> column_index: u32;
var<private> shift: u32;
${planes
  .map(
    ({ bits, text }) => `fn plane${bits}_code(head: u32, t: u32, i: u32) -> u32 {
  return (codes[(column_index / ${D} * ${P} + t) * ${D} + column_index % ${D}] >> shift) & ${2 ** bits - 1};
}
${text}`,
  )
  .join('\n')}
/** Byte n, of the last column that starts at or before it. */
fn columns(n: u32) -> u32 {
  var low = 0u;
  var high = ${kvHeads * D}u;
  while (high - low > 1) {
    let middle = (low + high) / 2;
    if (tables[${encodingTableOffset(layout)} + middle] / 8 <= n) { low = middle; } else { high = middle; }
  }
  column_index = low;
  shift = 0;
  let column = tables[${encodingTableOffset(layout)} + low];
  var m = n - column / 8;
  ${planes
    .map(
      ({ bits, bytes }) => `if ((column & ${bits}) != 0) {
    if (m < ${bytes}) { return plane${bits}(m, 0); }
    m -= ${bytes};
    shift += ${bits};
  }`,
    )
    .join('\n  ')}
  return 0;
}`;
      return { text, fields: [{ offset: 0, bytes: pageBytes, shared: true, at: n => `columns(${n})` }] };
    }
    case 'book': {
      const { text, field } = grid('indices', { ...encoding.codes, tokens: P, dims: D / encoding.subvectorDims });
      return { text, fields: [field] };
    }
    case 'oaken': {
      const { text, field } = grid('nibbles', { ...encoding.codes, tokens: P, dims: D });
      const at = oakenScalars(D, P);
      const values = kvHeads * P * D;
      const counts = /* wgsl */ `
/** Byte n of one word per head. */
fn word_per_head(n: u32, at: u32) -> u32 { return scalar4(n % 4, n / 4 * ${S} + at); }
fn counts(n: u32, head: u32) -> u32 {
  let from_word = head * ${S} + ${at.counts} + 2 * n;
  return scalars[from_word] | (scalars[from_word + 1] << 4);
}`;
      return {
        text: `${text}\n${counts}`,
        fields: [
          { offset: encoding.rangesOffset, bytes: 12 * P, shared: true, at: n => `scalar2(${n}, 0)` },
          {
            offset: encoding.listStartsOffset,
            bytes: 4 * kvHeads,
            shared: true,
            at: n => `word_per_head(${n}, ${at.start})`,
          },
          {
            offset: encoding.droppedOffset,
            bytes: 4 * kvHeads,
            shared: true,
            at: n => `word_per_head(${n}, ${at.dropped})`,
          },
          {
            offset: encoding.listsOffset,
            bytes: encoding.listsCapacity,
            shared: true,
            at: n => `codes[${values} + ${n}]`,
          },
          field,
          { offset: encoding.listCountsOffset, bytes: (at.all - at.counts) / 2, at: n => `counts(${n}, head)` },
        ],
      };
    }
    case 'spectrum': {
      const { keptPairs, cosines, sines } = encoding;
      const grids = [{ offset: encoding.pairsOffset, bits: 8, order: 'columns' } as const, cosines, sines].map(
        (codes, n) => {
          const { text, field } = grid(`slots${n}`, { ...codes, tokens: P, dims: keptPairs }, `slot${n}`);
          const slot = `fn slot${n}(head: u32, t: u32, i: u32) -> u32 { return codes[(head * ${P} + t) * ${2 * D} + ${n * keptPairs} + i]; }`;
          return { text: `${slot}\n${text}`, field };
        },
      );
      return {
        text: grids.map(({ text }) => text).join('\n'),
        fields: [...grids.map(({ field }) => field), scalars(encoding.scales)],
      };
    }
  }
}
