/**
 * What attention with one subgroup per workgroup reads: sealed pages, and the f16 tokens of tails and sinks. Items are
 * those of ../sources.ts.
 */

import { type Kernel, readBuffer } from '../../kernel.ts';
import type { AttendShape } from '../attend.ts';
import { PAGE_ROTATIONS } from '../page-relative.ts';
import { poolLoads, readF16x4 } from '../pool-loads.ts';
import {
  F16_TOKENS_PER_ROUND,
  f16Reader,
  firstRead,
  PAGE_BUFFERS,
  PAGE_PARAMS,
  pageOffsets,
  type Side,
} from '../sources.ts';
import { F16_ITEM, PAGE_ITEM } from '../work-items.ts';
import { attend, type KeyStage, LOG2E, type ValueStage } from './attend.ts';
import { fourF16, type Rows, rowKeys, rowValues } from './float-rows.ts';
import { LANES } from './subgroup.ts';

/** Tokens of tails and sinks per round: four per lane. */
const ROUND = 4 * LANES;

export function attendPagesOneSubgroup(
  keys: Side<KeyStage>,
  values: Side<ValueStage>,
  shape: AttendShape,
  rows: number,
): Kernel {
  const { pageTokens: P } = shape;
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: [...PAGE_BUFFERS, readBuffer(PAGE_ROTATIONS, 'vec2f')],
      tokens: P,
      firstRound: PAGE_ITEM.at.firstRound,
      rounds: PAGE_ITEM.at.rounds,
      keys: { ...keys.stage, text: Q => `${poolLoads}\n${readF16x4}\n${firstRead}\n${keys.stage.text(Q)}` },
      values: values.stage,
      begin: pageOffsets(keys.layout, values.layout),
      visible: t => `i32(page * ${P} + ${t}) >= first_read(item, $ru)`,
      allVisible: `i32(page * ${P}) >= first_read(item, ${rows - 1}u)`,
    },
    shape,
    rows,
  );
}

/** An item counts rounds of F16_TOKENS_PER_ROUND tokens; this kernel takes several of them at once. */
export function attendF16OneSubgroup(shape: AttendShape, rows: number): Kernel {
  const { headDim: D } = shape;
  const { text, params, buffers, begin } = f16Reader(shape);
  const read = (side: 'key' | 'value'): Rows => ({
    name: `f16 ${D}`,
    dim: D,
    tokens: ROUND,
    count: 'count',
    ahead: { keys: 4, values: 4 },
    unit: 1,
    adjacent: false,
    load: (t, cs) => cs.map(c => `${side}_words(sinks, start, head, first + ${t}, ${c})`),
    four: fourF16,
    text: side === 'key' ? text : '',
  });
  return attend(
    {
      name: 'f16',
      params,
      buffers,
      tokens: ROUND,
      firstRound: '0u',
      rounds: `(${F16_ITEM.at.rounds} * ${F16_TOKENS_PER_ROUND} + ${ROUND - 1}) / ${ROUND}`,
      keys: rowKeys(read('key'), {
        words: D,
        at: n => `bitcast<f32>(queries[query_origin$q + ${n}]) * p.scale * ${LOG2E}`,
      }),
      values: rowValues(read('value')),
      begin: `${begin}
    let first = ${F16_ITEM.at.firstToken} + page * ${ROUND};
    let end = min(${F16_ITEM.at.endToken} + select(${F16_ITEM.at.rows} - 1, 0u, sinks),
      ${F16_ITEM.at.firstToken} + ${F16_ITEM.at.rounds} * ${F16_TOKENS_PER_ROUND});
    let count = min(${ROUND}u, end - min(end, first));`,
      visible: t =>
        `(${t} < count) & (first + ${t} < ${F16_ITEM.at.endToken} + select($ru, 0u, sinks)) & (i32(first + ${t}) >= i32(${F16_ITEM.at.windowStart} + $ru))`,
      allVisible: 'false',
    },
    shape,
    rows,
  );
}
