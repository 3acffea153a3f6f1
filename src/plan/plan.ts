/** Which codec every layer's keys and values use, and what stays f16. */
import { halfBytes, type LeafLayout, leafLayout } from '../cache/leaf.ts';
import { codeBits, type Side } from '../codec/codec.ts';
import { createCodec, type KvCodec, type KvShape, learns } from '../codec/kv.ts';
import type { Learned } from '../codec/learned.ts';
import { formatSpec, type KvSpec, parseSpec, type Window, windowOf } from '../codec/spec.ts';
import { packedPages, tailRoom } from '../kernel/visibility.ts';
import { shareMead, sharesMead, type Unit } from './allocate.ts';
import type { Profile } from './profile.ts';

export interface Plan {
  /** Canonical. */
  spec: string;
  window: Required<Window>;
  pageTokens: number;
  /** Code bits a value, keys and values together, layers kept in f16 left out. */
  bits: number;
  codecs: readonly KvCodec[];
  leaf: LeafLayout;
  /** Divergence from an f16 cache that the profile lets one expect, nats a token. */
  predicted?: number;
  /** What one should know of how it was chosen. */
  notice?: string;
}

export interface PlanShape extends KvShape {
  layers: number;
  kvHeads: number;
}

/**
 * One spec for all layers but the first and last `edge` ones, which stay f16. Codecs that learn from data take what the
 * profile holds of their layer; mead shares its bits out over all of them.
 */
export function planOf(spec: string, shape: PlanShape, profile?: Profile): Plan {
  const parsed = parseSpec(spec);
  const { edge } = windowOf(parsed);
  // Devices make kernels for each codec: layers that learned nothing share one.
  const shared = learns(spec) ? undefined : createCodec(spec, shape);
  const share = sharesMead(profile) ? shareSpec(parsed, shape.layers, profile) : undefined;
  const codecs = byLayer(shape, edge, layer => {
    const known = (side: Side) => ({ ...profile?.learned[layer][side], ...share?.amounts.get(layer)?.[side] });
    return shared ?? createCodec(spec, shape, { key: known('key'), value: known('value') });
  });
  return planOfCodecs(formatSpec(parsed), windowOf(parsed), codecs, share?.predicted);
}

const isEdge = (layer: number, layers: number, edge: number) => layer < edge || layer >= layers - edge;

/** Sides of all layers that are coded. */
export function unitsOf(layers: number, edge: number): Unit[] {
  const coded = Array.from({ length: layers }, (_, layer) => layer).filter(layer => !isEdge(layer, layers, edge));
  return coded.flatMap(layer => [
    { layer, side: 'key' as const },
    { layer, side: 'value' as const },
  ]);
}

/** A codec for each layer; f16 at the edges. */
export function byLayer(shape: PlanShape, edge: number, codecOf: (layer: number) => KvCodec): KvCodec[] {
  const exact = createCodec('f16', shape);
  return Array.from({ length: shape.layers }, (_, layer) =>
    isEdge(layer, shape.layers, edge) ? exact : codecOf(layer),
  );
}

/** Amounts for every layer's mead sides; a base that serves both sides is one budget. */
function shareSpec(spec: KvSpec, layers: number, profile: Profile) {
  const amounts = new Map<number, Partial<Record<Side, Learned>>>();
  let predicted: number | undefined;
  const sides = { key: spec.key, value: spec.value };
  for (const base of new Set([spec.key.base, spec.value.base])) {
    const [, bits, uniform] = base.match(/^mead([\d.]+)(u?)$/) ?? [];
    if (!bits) continue;
    const units = unitsOf(layers, windowOf(spec).edge).filter(({ side }) => sides[side].base === base);
    const share = shareMead(profile, units, Number(bits), uniform === 'u');
    predicted = (predicted ?? 0) + share.predicted;
    units.forEach(({ layer, side }, i) => {
      const learned = { [uniform ? 'mead.bits' : 'mead.nibbles']: share.amounts[i] };
      amounts.set(layer, { ...amounts.get(layer), [side]: learned });
    });
  }
  const whole = Object.values(sides).every(({ base }) => base.startsWith('mead'));
  return { amounts, predicted: whole ? predicted : undefined };
}

/** Code bits a value over keys and values together. */
export const bitsOf = ({ keys, values }: KvCodec): number => (codeBits(keys) + codeBits(values)) / 2;

/** A plan of a codec for each layer, all under one window. */
export function planOfCodecs(
  spec: string,
  window: Required<Window>,
  codecs: readonly KvCodec[],
  predicted?: number,
): Plan {
  const coded = codecs.filter(codec => codec.keys.spec !== 'f16' || codec.values.spec !== 'f16');
  const counted = coded.length > 0 ? coded : codecs;
  return {
    spec,
    window,
    pageTokens: codecs[0].shape.pageTokens,
    bits: counted.reduce((sum, codec) => sum + bitsOf(codec), 0) / counted.length,
    codecs,
    leaf: leafLayout(codecs),
    predicted,
  };
}

/** Bytes of one sequence of `context` tokens: whole leaves, f16 sinks, and the tail as it is reserved. */
export function planBytes({ window, pageTokens, codecs, leaf }: Plan, context: number): number {
  const shape = { ...codecs[0].shape, layers: leaf.layers };
  const sealing = { pageTokens, recent: window.recent };
  const tail = halfBytes(shape, tailRoom(sealing));
  return packedPages(context, sealing) * leaf.bytes + tail + halfBytes(shape, window.sink);
}
