/** Counts the outliers in a sequence's sealed pages. */
import type { Device, KvView, Outliers, PageCodec } from '../kernel/device.ts';
import { pagesOf } from '../kernel/visibility.ts';
import { formatCount } from '../util/units.ts';

/** Reads the pages back from the device. Undefined if no codec has outlier lists. */
export async function countOutliers(device: Device, view: KvView): Promise<Outliers | undefined> {
  const { layers } = view.shape;
  if (!layers.some(({ keys, values }) => keys.outliers || values.outliers)) return undefined;
  const sum = { listed: 0, dropped: 0 };
  const add = (bytes: Uint8Array, codec: PageCodec, offset: number) => {
    const found = codec.outliers?.(bytes.subarray(offset, offset + codec.pageBytes));
    sum.listed += found?.listed ?? 0;
    sum.dropped += found?.dropped ?? 0;
  };
  for (const blocks of new Set(layers.map((_, layer) => pagesOf(view, layer)))) {
    for (const block of blocks) {
      if (!block) continue;
      const bytes = await device.readBlock(block);
      for (const [layer, { keys, values, keyOffset, valueOffset }] of layers.entries()) {
        if (pagesOf(view, layer) !== blocks) continue;
        add(bytes, keys, keyOffset);
        add(bytes, values, valueOffset);
      }
    }
  }
  return sum;
}

/** "0.02 % of 123,456 outliers did not fit into their lists". */
export function formatOutliers({ listed, dropped }: Outliers): string {
  const all = listed + dropped;
  const percent = all === 0 ? 0 : (100 * dropped) / all;
  return `${dropped === 0 ? 0 : percent.toPrecision(2)} % of ${formatCount(all)} outliers did not fit into their lists`;
}
