/** What attention reads: sealed pages, and the f16 tokens of tails and sinks. */

import type { PageLayout } from '../../page-layout.ts';
import { tailBlockTokens } from '../../visibility.ts';
import { f32, type Kernel, readBuffer, u32 } from '../kernel.ts';
import { type AttendShape, attend, type KeyStage, type ValueStage } from './attend.ts';
import { type Floats, floatKeys, floatValues } from './floats.ts';
import { blockStart, pageStart } from './names.ts';
import { sequentialDims } from './page-reader.ts';
import { blockOffset, poolLoads } from './pool-loads.ts';
import type { PageShape } from './shape.ts';
import { F16_ITEM, PAGE_ITEM } from './work-items.ts';

/** f16 tokens per round: tails and sinks are short. */
export const F16_TOKENS_PER_ROUND = 32;

export interface Side<Part> {
  layout: PageLayout;
  stage: Part;
}

export const PAGE_PARAMS = [
  ...u32('stride', 'valueOffset'),
  ...f32('scale', 'softcap'),
  ...u32('keyColumns', 'valueColumns'),
];

/** The page pool three times, by the width of the loads. */
export const PAGE_BUFFERS = [
  readBuffer('pool', 'u32'),
  readBuffer('pool2', 'vec2u'),
  readBuffer('pool4', 'vec4u'),
  readBuffer('keyTables', 'u32'),
  readBuffer('valueTables', 'u32'),
];

/** Byte offsets of a page and of the head's block in it. Stages name them by `pageStart` and `blockStart`. */
export const pageOffsets = (keys: PageLayout, values: PageLayout): string => `
    let ${pageStart('key')} = data[p.table + ${PAGE_ITEM.at.slots} + page] * p.stride;
    let ${pageStart('value')} = ${pageStart('key')} + p.valueOffset;
    let ${blockStart('key')} = ${blockOffset(keys, pageStart('key'))};
    let ${blockStart('value')} = ${blockOffset(values, pageStart('value'))};`;

/** The first token of an item's pages that a row reads: sinks and tokens before its window are skipped. */
export const firstRead = /* wgsl */ `
fn first_read(item: u32, row: u32) -> i32 { return max(i32(${PAGE_ITEM.at.skippedTokens}), i32(${PAGE_ITEM.at.windowStart}) + i32(row)); }`;

export function attendPages(
  keys: Side<KeyStage>,
  values: Side<ValueStage>,
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
      keys: { ...keys.stage, text: Q => `${poolLoads}\n${firstRead}\n${keys.stage.text(Q)}` },
      values: values.stage,
      begin: pageOffsets(keys.layout, values.layout),
      firstRound: PAGE_ITEM.at.firstRound,
      visible: t => `i32(page * ${P} + ${t}) >= first_read(item, q / ${shape.group / parts})`,
    },
    shape,
    rows,
    parts,
  );
}

/**
 * How f16 tokens are read: `SIDE_words(sinks, start, head, t, c)` loads eight dims of a token (zeros past the last dim),
 * `SIDE_eight` converts them to floats. `begin` declares `sinks` and `start` for a round: the first row of the sinks, or the
 * list of the slots of the tail's blocks.
 */
export function f16Reader({ headDim: D, kvHeads, pageTokens }: PageShape) {
  const blockTokens = tailBlockTokens(pageTokens);
  // Whole vectors where rows are multiples of eight dims, else pairs.
  const aligned = D % 8 === 0;
  const text = /* wgsl */ `
struct Eight { low: vec4f, high: vec4f }
${
  aligned
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
  return vec4u(@list(j, 4, read_pair(sinks, row, 8 * c + $(2 * j))));
}`
}
fn as_floats(words: vec4u) -> Eight {
  return Eight(
    vec4f(unpack2x16float(words.x), unpack2x16float(words.y)),
    vec4f(unpack2x16float(words.z), unpack2x16float(words.w)),
  );
}
fn row_of(sinks: bool, start: u32, head: u32, t: u32) -> u32 {
  if (sinks) { return start + (head * p.sinkTokens + t % p.sinkTokens) * ${D}; }
  let index = t % p.tailTokens;
  return data[start + index / ${blockTokens}] * p.tailStride / 2 + (head * ${blockTokens} + index % ${blockTokens}) * ${D};
}
fn key_words(sinks: bool, start: u32, head: u32, t: u32, c: u32) -> vec4u {
  return read_words(sinks, row_of(sinks, start, head, t), c);
}
fn value_words(sinks: bool, start: u32, head: u32, t: u32, c: u32) -> vec4u {
  return read_words(sinks, row_of(sinks, start, head + ${kvHeads}, t), c);
}
fn key_eight(sinks: bool, start: u32, head: u32, t: u32, c: u32) -> Eight {
  return as_floats(key_words(sinks, start, head, t, c));
}
fn value_eight(sinks: bool, start: u32, head: u32, t: u32, c: u32) -> Eight {
  return as_floats(value_words(sinks, start, head, t, c));
}`;
  return {
    text,
    params: [...u32('tailStride', 'tailTokens', 'sinkStride', 'sinkTokens'), ...f32('scale', 'softcap')],
    buffers: aligned
      ? [readBuffer('tailPool', 'vec4u'), readBuffer('sinkPool', 'vec4u')]
      : [readBuffer('tailPool', 'u32'), readBuffer('sinkPool', 'u32')],
    begin: `
    let sinks = ${F16_ITEM.at.isSinks} == 1;
    let start = select(p.table + ${F16_ITEM.at.slots}, ${F16_ITEM.at.slots} * p.sinkStride / 2, sinks);`,
  };
}

export function attendF16(shape: AttendShape, rows: number, parts: number): Kernel {
  const { headDim: D, group } = shape;
  const reader = f16Reader(shape);
  const row = `q / ${group / parts}`;
  const floats = (side: 'key' | 'value'): Floats => ({
    name: `f16 ${D}`,
    dim: D,
    tokens: F16_TOKENS_PER_ROUND,
    call: `${side}_eight(sinks, start, head, first +`,
    by: 'eight',
    dimOrder: sequentialDims,
    scale: 'vec4f(1.0)',
    text: side === 'key' ? reader.text : '',
    setup: '',
    begin: '',
  });
  return attend(
    {
      name: 'f16',
      params: reader.params,
      buffers: reader.buffers,
      tokens: F16_TOKENS_PER_ROUND,
      keys: floatKeys(floats('key'), {
        queryWords: D,
        at: 'bitcast<f32>(queries[origin + n]) * p.scale',
      }),
      values: floatValues(floats('value')),
      begin: `${reader.begin}
    let first = ${F16_ITEM.at.firstToken} + page * ${F16_TOKENS_PER_ROUND};`,
      firstRound: '0u',
      visible: t =>
        `(first + ${t} < ${F16_ITEM.at.endToken} + select(${row}, 0u, sinks)) & (i32(first + ${t}) >= i32(${F16_ITEM.at.windowStart} + ${row}))`,
    },
    shape,
    rows,
    parts,
  );
}
