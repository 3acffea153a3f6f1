/** What attention by teams reads: sealed pages. Items are those of ../sources.ts. */

import type { Kernel } from '../../gpu.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../lanes/talk.ts';
import { loads } from '../read.ts';
import { PAGE_BUFFERS, PAGE_PARAMS, pageBegin, type Side } from '../sources.ts';
import { attend, type KeyPart, type ValuePart } from './attend.ts';

/** An item has as many pages as there are teams, at most. */
export function pagesByTeams(keys: Side<KeyPart>, values: Side<ValuePart>, shape: AttendShape, rows: number): Kernel {
  const { pageTokens: P } = shape;
  const here = (t: string) => (4 * LANES > P ? ` & (${t} < ${P})` : '');
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: PAGE_BUFFERS,
      tokens: P,
      keys: { ...keys.part, text: `${loads}\n${keys.part.text ?? ''}` },
      values: values.part,
      // A team without a page reads the last one and sees nothing of it.
      begin: `let page = min(team, data[item + 3] - 1);
  let skipped = select(max(data[item + 4], page * ${P}) - page * ${P}, ${P}u, team >= data[item + 3]);
  ${pageBegin(keys.fragment, values.fragment)}`,
      seen: t => `(${t} >= skipped)${here(t)}`,
    },
    shape,
    rows,
  );
}
