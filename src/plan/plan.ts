/** Which codec every layer's keys and values use, and what stays f16. */
import { type LeafLayout, leafLayout } from '../cache/leaf.ts';
import { createCodec, type KvCodec, type KvShape, learns } from '../codec/kv.ts';
import { formatSpec, parseSpec, type Window, windowOf } from '../codec/spec.ts';
import { bitsOf } from './memory.ts';
import type { Profile } from './profile.ts';

export interface Plan {
  /** Canonical. */
  spec: string;
  window: Required<Window>;
  pageTokens: number;
  /** Code bits a value, keys and values together, layers kept in f16 left out. */
  bits: number;
  leaf: LeafLayout;
}

export interface PlanShape extends KvShape {
  layers: number;
  kvHeads: number;
}

/** Codecs that learn from data take what the profile holds of their layer; without one they say what to do. */
export function planOf(spec: string, shape: PlanShape, profile?: Profile): Plan {
  const parsed = parseSpec(spec);
  const window = windowOf(parsed);
  return planOfCodecs(formatSpec(parsed), window, layerCodecs(spec, window.edge, shape, profile));
}

/** One spec for all layers, but for the first and last `edge` ones, which stay f16. */
function layerCodecs(spec: string, edge: number, shape: PlanShape, profile?: Profile): KvCodec[] {
  const exact = createCodec('f16', shape);
  // Devices make kernels for each codec: layers that learned nothing share one.
  const shared = learns(spec, shape) ? undefined : createCodec(spec, shape);
  return Array.from({ length: shape.layers }, (_, layer) =>
    layer < edge || layer >= shape.layers - edge
      ? exact
      : (shared ?? createCodec(spec, shape, profile?.learned[layer])),
  );
}

/** A plan of a codec for each layer, all under one window. */
export function planOfCodecs(spec: string, window: Required<Window>, codecs: readonly KvCodec[]): Plan {
  const coded = codecs.filter(codec => codec.keys.spec !== 'f16' || codec.values.spec !== 'f16');
  const counted = coded.length > 0 ? coded : codecs;
  return {
    spec,
    window,
    pageTokens: codecs[0].shape.pageTokens,
    bits: counted.reduce((sum, codec) => sum + bitsOf(codec), 0) / counted.length,
    leaf: leafLayout(codecs),
  };
}
