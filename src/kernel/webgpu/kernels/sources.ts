/** What attention reads: sealed pages, and the f16 tokens of tails and sinks. */

import type { Fragment } from '../../fragment.ts';
import type { Kernel } from '../gpu.ts';
import { type AttendShape, attend, type KeyPart, type ValuePart } from './attend.ts';
import { floatKeys, floatValues } from './generic.ts';
import { blockAt, loads } from './read.ts';

/** Tokens of the f16 tail and sinks that are read at a time. */
export const HALF_TOKENS = 128;

export interface Side<Part> {
  fragment: Fragment;
  part: Part;
  /** Whether it has tables. */
  tables: boolean;
}

/** Own words of an item: first word of the list of slots, tokens to pass over, number of the first page. */
export function attendPages(keys: Side<KeyPart>, values: Side<ValuePart>, shape: AttendShape, rows: number): Kernel {
  const { pageTokens: P } = shape;
  return attend(
    {
      name: 'pages',
      params: ['stride', 'valueOffset', 'scale: f32'],
      buffers: [
        'pool: array<u32>',
        'pool4: array<vec4u>',
        ...(keys.tables ? ['keyTables: array<u32>'] : []),
        ...(values.tables ? ['valueTables: array<u32>'] : []),
      ],
      tokens: P,
      keys: { ...keys.part, text: Q => `${loads}\n${keys.part.text(Q)}` },
      values: values.part,
      begin: `
    let keyPage = data[p.table + data[item + 2] + page] * p.stride;
    let valuePage = keyPage + p.valueOffset;
    let keyBlock = ${blockAt(keys.fragment, 'keyPage')};
    let valueBlock = ${blockAt(values.fragment, 'valuePage')};`,
      seen: `page * ${P} + t >= data[item + 4]`,
    },
    shape,
    rows,
  );
}

/** Own words of an item: 0 for a tail and 1 for sinks, slot, first token, end of what the first row sees. */
export function attendHalves(shape: AttendShape, rows: number): Kernel {
  const { headDim: D, kvHeads, group } = shape;
  const read = (side: number) =>
    `half_at(sinks, start + ((first + t) % room) * ${D / 2} + ${(side * kvHeads * D) / 2} * room, i)`;
  const text = /* wgsl */ `
fn half_at(sinks: bool, word: u32, i: u32) -> f32 {
  let at = word + i / 2;
  var both: u32;
  if (sinks) { both = sinkPool[at]; } else { both = tailPool[at]; }
  return unpack2x16float(both >> (16 * (i & 1))).x;
}`;
  return attend(
    {
      name: 'halves',
      params: ['tailStride', 'tailTokens', 'sinkStride', 'sinkTokens', 'scale: f32'],
      buffers: ['tailPool: array<u32>', 'sinkPool: array<u32>'],
      tokens: HALF_TOKENS,
      keys: floatKeys(`f16 ${D}`, D, read(0), '1.0', { words: D, factor: ' * p.scale', constant: '0.0', text }),
      values: floatValues(`f16 ${D}`, D, HALF_TOKENS, read(1), '1.0'),
      begin: `
    let sinks = data[item + 2] == 1;
    let room = select(p.tailTokens, p.sinkTokens, sinks);
    let start = data[item + 4] * select(p.tailStride, p.sinkStride, sinks) / 4 + head * room * ${D / 2};
    let first = data[item + 7] + page * ${HALF_TOKENS};`,
      seen: `first + t < data[item + 8] + select(q / ${group}, 0u, sinks)`,
    },
    shape,
    rows,
  );
}
