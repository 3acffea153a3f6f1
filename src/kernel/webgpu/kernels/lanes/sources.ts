/** What attention by lanes reads: sealed pages, and the f16 tokens of tails and sinks. Items are those of ../sources.ts. */

import type { Kernel } from '../../gpu.ts';
import type { AttendShape } from '../attend.ts';
import { fourHalves, loads } from '../read.ts';
import { HALF_TOKENS, halfReader, PAGE_BUFFERS, PAGE_PARAMS, pageBegin, type Side } from '../sources.ts';
import { attend, type KeyPart, LOG2E, type ValuePart } from './attend.ts';
import { ofHalves, type Rows, rowKeys, rowValues } from './rows.ts';
import { LANES } from './talk.ts';

/** Tokens of tails and sinks a round: four a lane. */
export const ROUND = 4 * LANES;

export function pagesByLanes(keys: Side<KeyPart>, values: Side<ValuePart>, shape: AttendShape, rows: number): Kernel {
  const { pageTokens: P } = shape;
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: [...PAGE_BUFFERS, 'turns: array<vec2f>'],
      tokens: P,
      rounds: 'data[item + 3]',
      keys: { ...keys.part, text: Q => `${loads}\n${fourHalves}\n${keys.part.text(Q)}` },
      values: values.part,
      begin: pageBegin(keys.fragment, values.fragment),
      seen: (_, t) => `page * ${P} + ${t} >= data[item + 4]`,
      allSeen: `page * ${P} >= data[item + 4]`,
    },
    shape,
    rows,
  );
}

/** Rounds of an item are of fewer tokens than a workgroup has lanes for, so that it takes several at once. */
export function halvesByLanes(shape: AttendShape, rows: number): Kernel {
  const { headDim: D } = shape;
  const { text, params, buffers, begin } = halfReader(shape);
  const read = (side: 'key' | 'value'): Rows => ({
    name: `halves ${D}`,
    dim: D,
    tokens: ROUND,
    count: 'count',
    ahead: { keys: 4, values: 4 },
    unit: 1,
    adjacent: false,
    load: (t, cs) => cs.map(c => `${side}_words(sinks, start, room_tokens, first + ${t}, ${c})`),
    four: ofHalves,
    text: side === 'key' ? text : '',
  });
  return attend(
    {
      name: 'halves',
      params,
      buffers,
      tokens: ROUND,
      rounds: `(data[item + 3] * ${HALF_TOKENS} + ${ROUND - 1}) / ${ROUND}`,
      keys: rowKeys(read('key'), {
        words: D,
        at: (origin, n) => `bitcast<f32>(queries[${origin} + ${n}]) * p.scale * ${LOG2E}`,
      }),
      values: rowValues(read('value')),
      begin: `${begin}
    let first = data[item + 7] + page * ${ROUND};
    let end = min(data[item + 8] + select(data[item + 1] - 1, 0u, sinks), data[item + 7] + data[item + 3] * ${HALF_TOKENS});
    let count = min(${ROUND}u, end - min(end, first));`,
      seen: (row, t) => `(${t} < count) & (first + ${t} < data[item + 8] + select(${row}u, 0u, sinks))`,
      allSeen: 'false',
    },
    shape,
    rows,
  );
}
