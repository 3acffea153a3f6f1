/** What the GPU holds of a codec: its matrices and means, and a name by which kernels for alike fragments are shared. */

import type { Fragment } from '../fragment.ts';
import type { Gpu } from './gpu.ts';
import type { AttendShape, KeyPart, ValuePart } from './kernels/attend.ts';
import { floatPageKeys, floatPageValues, turnedKeys } from './kernels/floats.ts';
import type * as byLanes from './kernels/lanes/attend.ts';
import { blockKeys, blockValues } from './kernels/lanes/blocks.ts';
import * as laneBooks from './kernels/lanes/books.ts';
import { channelKeys } from './kernels/lanes/channels.ts';
import { columnKeys, columnValues } from './kernels/lanes/columns.ts';
import * as laneInts from './kernels/lanes/ints.ts';
import { matrixKeys, matrixValues } from './kernels/lanes/matrices.ts';
import { oakenKeys, oakenValues } from './kernels/lanes/oaken.ts';
import { rangeValues } from './kernels/lanes/ranges.ts';
import { pageRowKeys, pageRowValues } from './kernels/lanes/rows.ts';
import { spectrumKeys } from './kernels/lanes/spectrum.ts';
import { columnsAt, tablesOf, transpose } from './kernels/tables.ts';
import type * as byTeams from './kernels/teams/attend.ts';
import * as teamMixed from './kernels/teams/mixed.ts';
import * as teamQuads from './kernels/teams/quads.ts';

export interface GpuCodec {
  fragment: Fragment;
  /** Everything that a kernel's text depends on. */
  name: string;
  /** Whether each KV head has a matrix of its own. */
  perHead: boolean;
  /** Of a matrix of Hadamard's with a sign a dim, these, over the root of the dims. */
  signs?: GPUBuffer;
  /** [coded dim][dim], and the same turned about; turned about too, what takes into the domain. */
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
  /** The same for attention by teams, which is taken before it. */
  teamKeys?: byTeams.KeyPart;
  teamValues?: byTeams.ValuePart;
}

/** A part for a codec, where it is one for its kind. */
type Maker<Part> = (name: string, fragment: Fragment, shape: AttendShape) => Part | undefined;

/** Parts that do not read floats: of each list the first that fits is taken, and none in precise mode. */
const LANE_KEYS: readonly Maker<byLanes.KeyPart>[] = [
  matrixKeys,
  laneInts.intKeys,
  laneInts.pairKeys,
  channelKeys,
  blockKeys,
  oakenKeys,
  columnKeys,
  laneBooks.bookKeys,
  spectrumKeys,
];
const LANE_VALUES: readonly Maker<byLanes.ValuePart>[] = [
  matrixValues,
  laneInts.intValues,
  rangeValues,
  blockValues,
  oakenValues,
  columnValues,
  laneBooks.bookValues,
];
const TEAM_KEYS: readonly Maker<byTeams.KeyPart>[] = [teamMixed.mixedKeys, teamQuads.additiveKeys];
const TEAM_VALUES: readonly Maker<byTeams.ValuePart>[] = [teamMixed.mixedValues, teamQuads.additiveValues];

export function createCodecs(gpu: Gpu, shape: AttendShape, precise: boolean): (fragment: Fragment) => GpuCodec {
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
    const first = <Part>(makers: readonly Maker<Part>[]): Part | undefined => {
      if (precise) return undefined;
      for (const make of makers) {
        const part = make(name, fragment, shape);
        if (part) return part;
      }
      return undefined;
    };
    const transposed = place(matrix && transpose(matrix, codedDim, headDim), 'matrix of a codec');
    const encodeRows = (encodeMatrix?.length ?? 0) / headDim / (perHead ? shape.kvHeads : 1);
    const codec: GpuCodec = {
      fragment,
      name,
      keys: fragment.turn ? turnedKeys(name, fragment, shape, perHead) : floatPageKeys(name, fragment, shape),
      values: floatPageValues(name, fragment, shape),
      laneKeys: first(LANE_KEYS) ?? pageRowKeys(fragment, shape),
      laneValues: first(LANE_VALUES) ?? pageRowValues(fragment, shape),
      teamKeys: first(TEAM_KEYS),
      teamValues: first(TEAM_VALUES),
      perHead,
      signs: place(signsOf(fragment, headDim), 'signs of a codec'),
      matrix: place(matrix, 'matrix of a codec'),
      transposed,
      encode: encodeMatrix ? place(transpose(encodeMatrix, encodeRows, headDim), 'matrix of a codec') : transposed,
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

/** Signs a dim, over the root of the dims, where the matrix is Hadamard's in Sylvester's order times them. */
function signsOf({ matrix, codedDim }: Fragment, headDim: number): Float32Array | undefined {
  if (!matrix || matrix.length !== headDim ** 2 || codedDim !== headDim || headDim % 4 !== 0) return undefined;
  const signs = matrix.slice(0, headDim);
  const even = (n: number) => [...n.toString(2)].filter(digit => digit === '1').length % 2 === 0;
  const same = matrix.every((x, at) => {
    const [row, i] = [Math.floor(at / headDim), at % headDim];
    return Math.abs(x - (even(row & i) ? signs[i] : -signs[i])) < 1e-6;
  });
  return same && (headDim & (headDim - 1)) === 0 ? signs : undefined;
}
