/** What attention reads: sealed pages, and the f16 tokens of tails and sinks. */

import type { Fragment } from '../../fragment.ts';
import type { Kernel } from '../gpu.ts';
import { type AttendShape, attend, type KeyPart, type ValuePart } from './attend.ts';
import { type Floats, floatKeys, floatValues } from './floats.ts';
import { blockAt, inOrder, loads } from './read.ts';
import type { PageShape } from './shape.ts';
import { each } from './text.ts';

/** Tokens of the f16 tail and sinks that are read at a time: they are few. */
export const HALF_TOKENS = 32;

export interface Side<Part> {
  fragment: Fragment;
  part: Part;
}

export const PAGE_PARAMS = ['stride', 'valueOffset', 'scale: f32', 'keyColumns', 'valueColumns'];

/** The pool thrice, by the width of what is read. */
export const PAGE_BUFFERS = [
  'pool: array<u32>',
  'pool2: array<vec2u>',
  'pool4: array<vec4u>',
  'keyTables: array<u32>',
  'valueTables: array<u32>',
];

/** Where a page's bytes are. */
export const pageBegin = (keys: Fragment, values: Fragment): string => `
    let keyPage = data[p.table + data[item + 2] + page] * p.stride;
    let valuePage = keyPage + p.valueOffset;
    let keyBlock = ${blockAt(keys, 'keyPage')};
    let valueBlock = ${blockAt(values, 'valuePage')};`;

/** Own words of an item: first word of the list of slots, tokens to pass over, number of the first page. */
export function attendPages(
  keys: Side<KeyPart>,
  values: Side<ValuePart>,
  shape: AttendShape,
  rows: number,
  parts: number,
): Kernel {
  const { pageTokens: P } = shape;
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: PAGE_BUFFERS,
      tokens: P,
      keys: { ...keys.part, text: Q => `${loads}\n${keys.part.text(Q)}` },
      values: values.part,
      begin: pageBegin(keys.fragment, values.fragment),
      seen: `page * ${P} + $t >= data[item + 4]`,
    },
    shape,
    rows,
    parts,
  );
}

/**
 * How f16 tokens are read: `SIDE_words(sinks, start, room, t, c)`, eight dims of a token, those past the last zero, and
 * `SIDE_eight` the same as floats; and what a round begins with but for its `first` token.
 */
export function halfReader({ headDim: D, kvHeads }: PageShape) {
  // Eights of a row that are whole vectors, or pairs one by one.
  const whole = D % 8 === 0;
  const text = /* wgsl */ `
struct Eight { low: vec4f, high: vec4f }
${
  whole
    ? `fn read_words(sinks: bool, row: u32, c: u32) -> vec4u {
  var words: vec4u;
  if (sinks) { words = sinkPool[row / 8 + c]; } else { words = tailPool[row / 8 + c]; }
  return words;
}`
    : `fn read_pair(sinks: bool, row: u32, i: u32) -> u32 {
  if (i >= ${D}) { return 0; }
  var both: u32;
  if (sinks) { both = sinkPool[(row + i) / 2]; } else { both = tailPool[(row + i) / 2]; }
  return both;
}
fn read_words(sinks: bool, row: u32, c: u32) -> vec4u {
  return vec4u(${each(4, j => `read_pair(sinks, row, 8 * c + ${2 * j})`, ', ')});
}`
}
fn as_floats(words: vec4u) -> Eight {
  return Eight(
    vec4f(unpack2x16float(words.x), unpack2x16float(words.y)),
    vec4f(unpack2x16float(words.z), unpack2x16float(words.w)),
  );
}
fn key_words(sinks: bool, start: u32, room: u32, t: u32, c: u32) -> vec4u {
  return read_words(sinks, start + (t % room) * ${D}, c);
}
fn value_words(sinks: bool, start: u32, room: u32, t: u32, c: u32) -> vec4u {
  return read_words(sinks, start + (t % room + ${kvHeads} * room) * ${D}, c);
}
fn key_eight(sinks: bool, start: u32, room: u32, t: u32, c: u32) -> Eight {
  return as_floats(key_words(sinks, start, room, t, c));
}
fn value_eight(sinks: bool, start: u32, room: u32, t: u32, c: u32) -> Eight {
  return as_floats(value_words(sinks, start, room, t, c));
}`;
  return {
    text,
    params: ['tailStride', 'tailTokens', 'sinkStride', 'sinkTokens', 'scale: f32'],
    buffers: whole
      ? ['tailPool: array<vec4u>', 'sinkPool: array<vec4u>']
      : ['tailPool: array<u32>', 'sinkPool: array<u32>'],
    begin: `
    let sinks = data[item + 2] == 1;
    let room_tokens = select(p.tailTokens, p.sinkTokens, sinks);
    let start = data[item + 4] * select(p.tailStride, p.sinkStride, sinks) / 2 + head * room_tokens * ${D};`,
  };
}

/** Own words of an item: 0 for a tail and 1 for sinks, slot, first token, end of what the first row sees. */
export function attendHalves(shape: AttendShape, rows: number, parts: number): Kernel {
  const { headDim: D, group } = shape;
  const reader = halfReader(shape);
  const floats = (side: 'key' | 'value'): Floats => ({
    name: `f16 ${D}`,
    dim: D,
    tokens: HALF_TOKENS,
    call: `${side}_eight(sinks, start, room_tokens, first +`,
    by: 'eight',
    place: inOrder,
    scale: 'vec4f(1.0)',
    text: side === 'key' ? reader.text : '',
    setup: '',
    begin: '',
  });
  return attend(
    {
      name: 'halves',
      params: reader.params,
      buffers: reader.buffers,
      tokens: HALF_TOKENS,
      keys: floatKeys(floats('key'), {
        words: D,
        at: 'bitcast<f32>(queries[origin + n]) * p.scale',
        constant: '0.0',
      }),
      values: floatValues(floats('value')),
      begin: `${reader.begin}
    let first = data[item + 7] + page * ${HALF_TOKENS};`,
      seen: `first + $t < data[item + 8] + select(q / ${group / parts}, 0u, sinks)`,
    },
    shape,
    rows,
    parts,
  );
}
