/** A codec on the GPU: its matrices, means and tables, and the kernel stages that read its pages. */

import { toF16 } from '../float.ts';
import type { PageLayout } from '../page-layout.ts';
import type { Gpu } from './gpu.ts';
import type { AttendShape, KeyStage, ValueStage } from './kernels/attend.ts';
import { floatPageKeys, floatPageValues, pageRelativeKeys } from './kernels/floats.ts';
import * as additive from './kernels/four-subgroups/additive.ts';
import type * as fourSubgroups from './kernels/four-subgroups/attend.ts';
import * as mixed from './kernels/four-subgroups/mixed.ts';
import { affineKeys } from './kernels/one-subgroup/affine-keys.ts';
import { affineValues } from './kernels/one-subgroup/affine-values.ts';
import type * as oneSubgroup from './kernels/one-subgroup/attend.ts';
import * as codebook from './kernels/one-subgroup/codebook.ts';
import { floatRowKeys, floatRowValues } from './kernels/one-subgroup/float-rows.ts';
import { ggmlBlockKeys, ggmlBlockValues } from './kernels/one-subgroup/ggml-blocks.ts';
import * as int8Levels from './kernels/one-subgroup/int8-levels.ts';
import { oneBitKeys, oneBitValues } from './kernels/one-subgroup/one-bit.ts';
import { spectrumKeys } from './kernels/one-subgroup/spectrum.ts';
import { subgroupMatrixKeys, subgroupMatrixValues } from './kernels/one-subgroup/subgroup-matrix.ts';
import { columnTableOffset, lookupTables, transpose } from './kernels/tables.ts';

export interface GpuCodec {
  layout: PageLayout;
  /** Identifies all that kernels are generated from: codecs of the same name share kernels. */
  name: string;
  /** Whether each KV head has its own matrix. */
  perHead: boolean;
  /** If the matrix is a Hadamard matrix with one sign per dim: the signs, divided by sqrt(dims). */
  signs?: GPUBuffer;
  /** [coded dim][dim], and transposed; `encode` transforms vectors when sealing, transposed too. */
  matrix?: GPUBuffer;
  transposed?: GPUBuffer;
  encode?: GPUBuffer;
  /** The matrix of page-relative queries as f16 (kernels/attend-prompt.ts). */
  pageMatrix?: GPUBuffer;
  mean?: GPUBuffer;
  residual?: GPUBuffer;
  /** Lookup tables of a learned codec (kernels/tables.ts). */
  tables?: GPUBuffer;
  /** Offset of the columns of additive pages in them. */
  columns: number;
  /** Stages of the generic attention kernel. */
  keys: KeyStage;
  values: ValueStage;
  /** Stages of one-subgroup attention, used where keys and values have one. */
  oneSubgroupKeys?: oneSubgroup.KeyStage;
  oneSubgroupValues?: oneSubgroup.ValueStage;
  /** Stages of four-subgroup attention, preferred to it. */
  fourSubgroupKeys?: fourSubgroups.KeyStage;
  fourSubgroupValues?: fourSubgroups.ValueStage;
}

/** Creates the stage for a page encoding, or undefined for encodings that it does not support. */
type StageFactory<Stage> = (name: string, layout: PageLayout, shape: AttendShape) => Stage | undefined;

/** The first that supports the codec is used; none in precise mode, where pages are read as floats. */
const ONE_SUBGROUP_KEYS: readonly StageFactory<oneSubgroup.KeyStage>[] = [
  subgroupMatrixKeys,
  int8Levels.levelRowKeys,
  int8Levels.levelPairKeys,
  affineKeys,
  ggmlBlockKeys,
  oneBitKeys,
  codebook.codebookKeys,
  spectrumKeys,
];
const ONE_SUBGROUP_VALUES: readonly StageFactory<oneSubgroup.ValueStage>[] = [
  subgroupMatrixValues,
  int8Levels.levelValues,
  affineValues,
  ggmlBlockValues,
  oneBitValues,
  codebook.codebookValues,
];
const FOUR_SUBGROUP_KEYS: readonly StageFactory<fourSubgroups.KeyStage>[] = [mixed.mixedKeys, additive.additiveKeys];
const FOUR_SUBGROUP_VALUES: readonly StageFactory<fourSubgroups.ValueStage>[] = [
  mixed.mixedValues,
  additive.additiveValues,
];

export function createCodecs(gpu: Gpu, shape: AttendShape, precise: boolean): (layout: PageLayout) => GpuCodec {
  const { headDim } = shape;
  const codecs = new Map<PageLayout, GpuCodec>();
  const uploadBuffer = (data: Float32Array | Uint32Array | undefined, label: string) => {
    if (!data) return undefined;
    const buffer = gpu.createBuffer(data.byteLength, label);
    gpu.upload(buffer, 0, new Uint8Array(data.slice().buffer));
    return buffer;
  };
  return layout => {
    const cached = codecs.get(layout);
    if (cached) return cached;
    const { queryMatrix, encodeMatrix, mean, encoding, codedDim } = layout;
    const name = layoutName(layout);
    const perHead = (queryMatrix?.length ?? 0) > codedDim * headDim;
    const first = <Stage>(factories: readonly StageFactory<Stage>[]): Stage | undefined => {
      if (precise) return undefined;
      for (const make of factories) {
        const stage = make(name, layout, shape);
        if (stage) return stage;
      }
      return undefined;
    };
    const transposed = uploadBuffer(queryMatrix && transpose(queryMatrix, codedDim, headDim), 'codec matrix');
    const encodeRows = (encodeMatrix?.length ?? 0) / headDim / (perHead ? shape.kvHeads : 1);
    const codec: GpuCodec = {
      layout,
      name,
      keys: layout.ropeFrequencies
        ? pageRelativeKeys(name, layout, shape, perHead)
        : floatPageKeys(name, layout, shape),
      values: floatPageValues(name, layout, shape),
      oneSubgroupKeys: withMeans(first(ONE_SUBGROUP_KEYS) ?? floatRowKeys(layout, shape), layout, shape),
      oneSubgroupValues: first(ONE_SUBGROUP_VALUES) ?? floatRowValues(layout, shape),
      fourSubgroupKeys: first(FOUR_SUBGROUP_KEYS),
      fourSubgroupValues: first(FOUR_SUBGROUP_VALUES),
      perHead,
      signs: uploadBuffer(hadamardSigns(layout, headDim), 'codec signs'),
      matrix: uploadBuffer(queryMatrix, 'codec matrix'),
      transposed,
      encode: encodeMatrix ? uploadBuffer(transpose(encodeMatrix, encodeRows, headDim), 'codec matrix') : transposed,
      pageMatrix: uploadBuffer(
        layout.ropeFrequencies && queryMatrix && toHalves(transpose(queryMatrix, codedDim, headDim)),
        'codec matrix',
      ),
      mean: uploadBuffer(mean, 'codec mean'),
      residual: uploadBuffer(encoding.kind === 'hybrid' ? encoding.residual?.matrix : undefined, 'residual matrix'),
      columns: columnTableOffset(layout),
      tables: uploadBuffer(lookupTables(layout, shape), 'codec tables'),
    };
    codecs.set(layout, codec);
    return codec;
  };
}

/** Two f16 per word. */
const toHalves = (floats: Float32Array): Uint32Array => new Uint32Array(Uint16Array.from(floats, toF16).buffer);

/** The stage for centered pages: after an int8 query come its floats. */
function withMeans(
  stage: oneSubgroup.KeyStage | undefined,
  { meansOffset: offset }: PageLayout,
  { headDim: dims }: AttendShape,
): oneSubgroup.KeyStage | undefined {
  if (!stage || offset === undefined) return stage;
  const { queryWords, int8 } = stage;
  const means = { dims, offset, floatQuery: int8 ? queryWords : 0 };
  return { ...stage, means, queryWords: queryWords + (int8 ? dims : 0) };
}

/** Kernels contain the layout and its levels; matrices, means and learned tables are bound instead. */
function layoutName({ queryMatrix, encodeMatrix, mean, ropeFrequencies, sharedBytes, ...rest }: PageLayout): string {
  const flags = [queryMatrix, encodeMatrix, mean, ropeFrequencies].map(x => x?.length ?? 0);
  // Pages without blocks consist of columns, whose offsets are in a table.
  const shared = rest.blockBytes > 0 ? sharedBytes : undefined;
  return JSON.stringify([rest, shared, flags], (key, value) => {
    if (!ArrayBuffer.isView(value)) return value;
    return key === 'levels' ? [...(value as Float32Array)] : undefined;
  });
}

/** The signs of a Hadamard matrix in Sylvester order, divided by sqrt(dims); undefined for other matrices. */
function hadamardSigns({ queryMatrix, codedDim }: PageLayout, headDim: number): Float32Array | undefined {
  if (!queryMatrix || queryMatrix.length !== headDim ** 2 || codedDim !== headDim || headDim % 4 !== 0)
    return undefined;
  const signs = queryMatrix.slice(0, headDim);
  const even = (n: number) => [...n.toString(2)].filter(digit => digit === '1').length % 2 === 0;
  const same = queryMatrix.every((x, at) => {
    const [row, i] = [Math.floor(at / headDim), at % headDim];
    return Math.abs(x - (even(row & i) ? signs[i] : -signs[i])) < 1e-6;
  });
  return same && (headDim & (headDim - 1)) === 0 ? signs : undefined;
}
