/** How the layers of a model differ from each other: which of them see only the last tokens, and which have which RoPE. */
import type { AttentionWindows } from '../cache/leaf.ts';
import type { Traits } from './architectures.ts';
import type { MetadataReader } from './metadata-reader.ts';
import type { LayerRope } from './model-config.ts';
import type { RopeConfig } from './rope.ts';

/** The window of each layer. The pattern is a period, of which the last layer sees all tokens, or one flag per layer. */
export function readWindows(
  meta: MetadataReader,
  { fullEvery, defaultWindow }: Traits,
  layers: number,
): AttentionWindows {
  const window = meta.value('attention.sliding_window')
    ? meta.integer('attention.sliding_window', { max: 2 ** 31 - 1 })
    : defaultWindow;
  if (!fullEvery || !window) return Array(layers).fill(undefined);
  const key = 'attention.sliding_window_pattern';
  const flags = meta.value(key);
  if (typeof flags === 'object') {
    if (flags.length !== layers) meta.fail(`${key} has ${flags.length} flags for ${layers} layers`);
    return Array.from<unknown, number | undefined>(flags as ArrayLike<unknown>, flag => (flag ? window : undefined));
  }
  const period = meta.integer(key, { max: 4096, fallback: fullEvery });
  return Array.from({ length: layers }, (_, layer) => ((layer + 1) % period === 0 ? undefined : window));
}

/** The RoPE of layers with a window, if it is another one. It is not scaled: these layers never see far. */
export function readLocalRope(
  meta: MetadataReader,
  { localRopeBase }: Traits,
  rope: RopeConfig,
): RopeConfig | undefined {
  if (localRopeBase === undefined) return undefined;
  const fallback = localRopeBase === 'same' ? rope.base : localRopeBase;
  const base = meta.float('rope.freq_base_swa', { min: 1.001, max: 1e15, fallback });
  return { base, dims: rope.dims, pairing: rope.pairing, scaling: { type: 'none' }, attnFactor: 1 };
}

export function readLayerRopes(
  meta: MetadataReader,
  { ropelessEvery, ropelessFull, ropeSwitch, localRopeBase }: Traits,
  windows: AttentionWindows,
): (LayerRope | undefined)[] {
  const hasWindows = windows.some(window => window !== undefined);
  const isRopeless = (layer: number) =>
    (ropelessEvery !== undefined && (layer + 1) % ropelessEvery === 0) ||
    (ropelessFull && hasWindows && windows[layer] === undefined) ||
    (ropeSwitch && meta.value('rope.scaling.finetuned') === false);
  const isLocal = (layer: number) => localRopeBase !== undefined && windows[layer] !== undefined;
  return windows.map((_, layer) => (isRopeless(layer) ? undefined : isLocal(layer) ? 'local' : 'global'));
}
