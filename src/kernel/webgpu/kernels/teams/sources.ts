/** What attention by teams reads: sealed pages, and the f16 tokens of tails and sinks. Items are those of ../sources.ts. */

import type { Kernel } from '../../gpu.ts';
import type { AttendShape } from '../attend.ts';
import { loads } from '../read.ts';
import { HALF_TOKENS, halfReader, PAGE_PARAMS, pageBegin, type Side } from '../sources.ts';
import { attend, type KeyPart, tokensOf, type ValuePart } from './attend.ts';
import { halfKeys, halfToken, halfValues } from './halves.ts';
import { LANES, TEAMS } from './talk.ts';

/** `split`: pages of an item at most. */
export function pagesByTeams(
  keys: Side<KeyPart>,
  values: Side<ValuePart>,
  shape: AttendShape,
  rows: number,
  split: number,
): Kernel {
  const { pageTokens: P } = shape;
  const own = tokensOf(P, keys.part.neighbours);
  const here = (t: string) => (own.each * LANES > P ? ` & (${t} < ${P})` : '');
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: [
        'pool: array<u32>',
        'pool2: array<vec2u>',
        'pool4: array<vec4u>',
        'keyTables: array<u32>',
        'valueTables: array<u32>',
      ],
      tokens: P,
      own,
      keys: { ...keys.part, text: Q => `${loads}\n${keys.part.text(Q)}` },
      values: values.part,
      // A team without a page reads the last one and sees nothing of it.
      rounds: split > TEAMS ? `(data[item + 3] + ${TEAMS - 1}) / ${TEAMS}` : undefined,
      begin: `let page = min(${TEAMS} * round + team, data[item + 3] - 1);
  let skipped = select(max(data[item + 4], page * ${P}) - page * ${P}, ${P}u, ${TEAMS} * round + team >= data[item + 3]);
  ${pageBegin(keys.fragment, values.fragment)}`,
      seen: (_, t) => `(${t} >= skipped)${here(t)}`,
    },
    shape,
    rows,
  );
}

export function halvesByTeams(shape: AttendShape, rows: number, split: number): Kernel {
  const { headDim: D } = shape;
  const { text, params, buffers, begin } = halfReader(shape);
  return attend(
    {
      name: 'halves',
      params,
      buffers,
      tokens: TEAMS * LANES,
      own: { neighbours: false, each: 1, at: () => halfToken },
      keys: halfKeys(D, text),
      values: halfValues(D),
      rounds: split > TEAMS ? `(data[item + 3] + ${TEAMS - 1}) / ${TEAMS}` : undefined,
      begin: `${begin}
  let first = data[item + 7] + ${TEAMS * HALF_TOKENS} * round;
  // What any row sees, of the item and of the team.
  let end = min(data[item + 8] + select(rows - 1, 0u, sinks), data[item + 7] + data[item + 3] * ${HALF_TOKENS});
  let count = min(${TEAMS * LANES}u, end - min(end, first));
  let own_count = min(${LANES}u, count - min(count, ${LANES} * team));`,
      seen: (row, t) => `(${t} < count) & (first + ${t} < data[item + 8] + select(${row}u, 0u, sinks))`,
    },
    shape,
    rows,
  );
}
