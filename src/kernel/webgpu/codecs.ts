/** What the GPU holds of a codec: its matrices and means, and a name by which kernels for alike fragments are shared. */

import type { Fragment } from '../fragment.ts';
import type { Gpu } from './gpu.ts';
import type { KeyPart, ValuePart } from './kernels/attend.ts';
import { floatPageKeys, floatPageValues, turnedKeys } from './kernels/floats.ts';
import { intKeys, intValues } from './kernels/ints.ts';
import type * as byLanes from './kernels/lanes/attend.ts';
import { blockKeys, blockValues } from './kernels/lanes/blocks.ts';
import * as laneBooks from './kernels/lanes/books.ts';
import { channelKeys } from './kernels/lanes/channels.ts';
import { columnKeys, columnValues } from './kernels/lanes/columns.ts';
import * as laneInts from './kernels/lanes/ints.ts';
import { oakenKeys, oakenValues } from './kernels/lanes/oaken.ts';
import { pageRowKeys, pageRowValues } from './kernels/lanes/rows.ts';
import { spectrumKeys } from './kernels/lanes/spectrum.ts';
import { mixedKeys, mixedValues } from './kernels/mixed.ts';
import { additiveKeys, bookKeys, quadValues } from './kernels/quads.ts';
import type { PageShape } from './kernels/shape.ts';
import { columnsAt, tablesOf, transpose } from './kernels/tables.ts';

export interface GpuCodec {
  fragment: Fragment;
  /** Everything that a kernel's text depends on. */
  name: string;
  /** Whether each KV head has a matrix of its own. */
  perHead: boolean;
  /** [coded dim][dim], and the same turned about. */
  matrix?: GPUBuffer;
  transposed?: GPUBuffer;
  encode?: GPUBuffer;
  mean?: GPUBuffer;
  residual?: GPUBuffer;
  /** What a learned codec looks up (kernels/tables.ts). */
  tables?: GPUBuffer;
  /** Where they describe the columns of additive pages. */
  columns: number;
  /** How attention reads it as keys and as values. */
  keys: KeyPart;
  values: ValuePart;
  /** The same for attention by lanes, which is taken where keys and values have it. */
  laneKeys?: byLanes.KeyPart;
  laneValues?: byLanes.ValuePart;
  /** Whether its keys want int8 queries. */
  int8: boolean;
}

export function createCodecs(gpu: Gpu, shape: PageShape, precise: boolean): (fragment: Fragment) => GpuCodec {
  const { headDim } = shape;
  const known = new Map<Fragment, GpuCodec>();
  const place = (data: Float32Array | Uint32Array | undefined, label: string) => {
    if (!data) return undefined;
    const buffer = gpu.buffer(data.byteLength, label);
    gpu.upload(buffer, 0, new Uint8Array(data.slice().buffer));
    return buffer;
  };
  return fragment => {
    const has = known.get(fragment);
    if (has) return has;
    const { matrix, encodeMatrix, mean, page, codedDim } = fragment;
    const name = nameOf(fragment);
    const perHead = (matrix?.length ?? 0) > codedDim * headDim;
    // The first that fits.
    const [ints, sums] = precise
      ? []
      : [
          intKeys(name, fragment, shape) ??
            bookKeys(name, fragment, shape) ??
            mixedKeys(name, fragment, shape, perHead) ??
            additiveKeys(name, fragment, shape, perHead),
          intValues(name, fragment, shape) ?? quadValues(name, fragment, shape) ?? mixedValues(name, fragment, shape),
        ];
    const floats = () =>
      fragment.turn ? turnedKeys(name, fragment, shape, perHead) : floatPageKeys(name, fragment, shape);
    const codec: GpuCodec = {
      fragment,
      name,
      keys: ints ?? floats(),
      values: sums ?? floatPageValues(name, fragment, shape),
      laneKeys:
        (precise
          ? undefined
          : (laneInts.intKeys(name, fragment, shape) ??
            channelKeys(name, fragment, shape) ??
            blockKeys(name, fragment, shape) ??
            oakenKeys(name, fragment, shape) ??
            columnKeys(name, fragment, shape) ??
            laneBooks.bookKeys(name, fragment, shape) ??
            spectrumKeys(name, fragment, shape))) ?? pageRowKeys(fragment, shape),
      laneValues:
        (precise
          ? undefined
          : (laneInts.intValues(name, fragment, shape) ??
            blockValues(name, fragment, shape) ??
            oakenValues(name, fragment, shape) ??
            columnValues(name, fragment, shape) ??
            laneBooks.bookValues(name, fragment, shape))) ?? pageRowValues(fragment, shape),
      int8: ints !== undefined && !fragment.turn,
      perHead,
      matrix: place(matrix, 'matrix of a codec'),
      transposed: place(matrix && transpose(matrix, codedDim, headDim), 'matrix of a codec'),
      encode: place(encodeMatrix ?? matrix, 'matrix of a codec'),
      mean: place(mean, 'mean of a codec'),
      residual: place(page.kind === 'hybrid' ? page.residual?.matrix : undefined, 'matrix of a residual'),
      columns: columnsAt(fragment),
      tables: place(tablesOf(fragment, shape), 'tables of a codec'),
    };
    known.set(fragment, codec);
    return codec;
  };
}

/** Kernels have levels written into them, while matrices, means and what was learned are bound. */
function nameOf({ matrix, encodeMatrix, mean, turn, sharedBytes, ...rest }: Fragment): string {
  const flags = [matrix, encodeMatrix, mean, turn].map(x => x?.length ?? 0);
  // Of pages that are all columns, kernels find the columns in a table.
  const shared = rest.blockBytes > 0 ? sharedBytes : undefined;
  return JSON.stringify([rest, shared, flags], (key, value) => {
    if (!ArrayBuffer.isView(value)) return value;
    return key === 'levels' ? [...(value as Float32Array)] : undefined;
  });
}
