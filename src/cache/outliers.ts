/** Counts the outliers in a sequence's sealed pages. */
import type { Device, KvView, Outliers } from '../kernel/device.ts';
import { formatCount } from '../util/units.ts';

/** Reads the pages back from the device. Undefined if no codec has outlier lists. */
export async function countOutliers(device: Device, view: KvView): Promise<Outliers | undefined> {
  const sides = view.shape.layers.flatMap(({ keys, values, keyOffset, valueOffset }) => [
    { codec: keys, offset: keyOffset },
    { codec: values, offset: valueOffset },
  ]);
  if (!sides.some(({ codec }) => codec.outliers)) return undefined;
  const sum = { listed: 0, dropped: 0 };
  for (const leaf of view.leaves) {
    const bytes = await device.readBlock(leaf);
    for (const { codec, offset } of sides) {
      const found = codec.outliers?.(bytes.subarray(offset, offset + codec.pageBytes));
      sum.listed += found?.listed ?? 0;
      sum.dropped += found?.dropped ?? 0;
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
