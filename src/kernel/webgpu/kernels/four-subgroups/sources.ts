/** What attention with four subgroups per workgroup reads: sealed pages. Items are those of ../sources.ts. */

import type { Kernel } from '../../kernel.ts';
import type { AttendShape } from '../attend.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { poolLoads } from '../pool-loads.ts';
import { firstRead, PAGE_BUFFERS, PAGE_PARAMS, pageOffsets, type Side } from '../sources.ts';
import { PAGE_ITEM } from '../work-items.ts';
import { attend, type KeyStage, type ValueStage } from './attend.ts';
import { vectors } from './names.ts';

/** An item has at most one page per subgroup. */
export function attendPagesFourSubgroups(
  keys: Side<KeyStage>,
  values: Side<ValueStage>,
  shape: AttendShape,
  rows: number,
): Kernel {
  const { pageTokens: P } = shape;
  const Q = shape.group * rows;
  const firstReads = `vec4i(@list(k, 4, first_read(item, $(min(4 * v + k, ${Q - 1}) / ${shape.group})u)))`;
  return attend(
    {
      name: 'pages',
      params: PAGE_PARAMS,
      buffers: PAGE_BUFFERS,
      tokens: P,
      keys: { ...keys.stage, text: `${poolLoads}\n${firstRead}\n${keys.stage.text ?? ''}` },
      values: values.stage,
      // A subgroup without a page reads the last one, with all tokens masked.
      begin: `let page = min(subgroup, ${PAGE_ITEM.at.rounds} - 1);
  @unroll(v, ${vectors(Q)}) let first_read$v = select(${firstReads} - i32(page * ${P}), vec4i(${P}), subgroup >= ${PAGE_ITEM.at.rounds});
  ${pageOffsets(keys.layout, values.layout)}`,
      visible: `(vec4i(i32((4 * lane + $j))) >= first_read$v)${4 * LANES > P ? ` & vec4<bool>((4 * lane + $j) < ${P})` : ''}`,
    },
    shape,
    rows,
  );
}
