/** What attention with four subgroups per workgroup reads: sealed pages. Items are those of ../sources.ts. */

import type { Kernel } from '../../kernel.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { poolLoads } from '../pool-loads.ts';
import { PAGE_BUFFERS, PAGE_PARAMS, pageOffsets, type Side } from '../sources.ts';
import { attend, type KeyStage, type ValueStage } from './attend.ts';

/** An item has at most one page per subgroup. */
export function attendPagesFourSubgroups(
  keys: Side<KeyStage>,
  values: Side<ValueStage>,
  shape: AttendShape,
  rows: number,
): Kernel {
  const { pageTokens: P } = shape;
  const here = (t: string) => (4 * LANES > P ? ` & (${t} < ${P})` : '');
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: PAGE_BUFFERS,
      tokens: P,
      keys: { ...keys.stage, text: `${poolLoads}\n${keys.stage.text ?? ''}` },
      values: values.stage,
      // A subgroup without a page reads the last one, with all tokens masked.
      begin: `let page = min(subgroup, data[item + 3] - 1);
  let skipped = select(max(data[item + 4], page * ${P}) - page * ${P}, ${P}u, subgroup >= data[item + 3]);
  ${pageOffsets(keys.layout, values.layout)}`,
      visible: t => `(${t} >= skipped)${here(t)}`,
    },
    shape,
    rows,
  );
}
