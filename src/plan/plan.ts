/** Which codec every layer's keys and values use, and what stays f16. */
import { type LeafLayout, leafLayout } from '../cache/leaf.ts';
import { createCodec } from '../codec/kv.ts';
import type { Window } from '../codec/spec.ts';

export interface Plan {
  /** Canonical. */
  spec: string;
  window: Required<Window>;
  pageTokens: number;
  leaf: LeafLayout;
}

export interface PlanShape {
  layers: number;
  kvHeads: number;
  headDim: number;
  pageTokens?: number;
}

/** One spec for all layers, but for the first and last `edge` ones, which stay f16. */
export function planOf(spec: string, shape: PlanShape): Plan {
  const codec = createCodec(spec, shape);
  const exact = createCodec('f16', shape);
  const { edge } = codec.window;
  const layers = Array.from({ length: shape.layers }, (_, layer) =>
    layer < edge || layer >= shape.layers - edge ? exact : codec,
  );
  return { spec: codec.spec, window: codec.window, pageTokens: codec.shape.pageTokens, leaf: leafLayout(layers) };
}
