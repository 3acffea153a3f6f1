/** A plan: the codec of every layer's keys and values, and what stays f16. */
import { type AttentionWindows, f16BlockBytes, type LeafLayout, leafLayout, sealedBytes } from '../cache/leaf.ts';
import { pageErrorBytes } from '../cache/page-errors.ts';
import { codeBits, type Side } from '../codec/codec.ts';
import { createCodec, type KvCodec, type KvShape, needsProfile, recommendedSamples, usesProfile } from '../codec/kv.ts';
import type { Learned } from '../codec/learned.ts';
import { F16, type F16Window, formatSpec, type KvSpec, windowOf } from '../codec/spec.ts';
import { packedPages, sealPosition, tailBlocks, tailBlockTokens } from '../kernel/visibility.ts';
import { formatCount } from '../util/units.ts';
import { allocateMead, canAllocateMead, type LayerSide } from './allocate.ts';
import { errorWeights } from './error-ratio.ts';
import { measuredDivergence, type Profile, type ProfileShape } from './profile.ts';

/**
 * Which pages a cache has, and which of them are read. `packed`: codes only. `shadow`, for evaluation: codes and f16;
 * prompts read f16 and answers codes. `two-tier`: codes and f16; all read f16, of which idle conversations keep only as much
 * as there is room for.
 */
export const kvModes = ['packed', 'shadow', 'two-tier'] as const;
export type KvMode = (typeof kvModes)[number];

/** `safe`: hardly different from f16. `balanced`: the default. `small`: fewer bits, at some cost in quality. */
export const presets = ['safe', 'balanced', 'small'] as const;
export type Preset = (typeof presets)[number];

/** How a cache is stored: one codec per layer. */
export interface Plan {
  /** The spec in canonical form. */
  spec: string;
  /** What stays f16. */
  window: Required<F16Window>;
  pageTokens: number;
  /** Code bits per value, averaged over keys and values, without layers that stay f16. */
  bits: number;
  /** One per layer. */
  codecs: readonly KvCodec[];
  /** Layout of one page of all layers. */
  leaf: LeafLayout;
  mode: KvMode;
  /** KL divergence from an f16 cache that the profile has measured or predicts, in nats per token. */
  predicted?: number;
  /** The preset that chose it. */
  preset?: Preset;
  /**
   * [layer][side]: weights of the squared errors of sealed pages, which make them relative to the calibration text. Only
   * for codecs that search for the nearest code, with a profile that knows their error.
   */
  errorWeights?: Float64Array;
  /** A warning about how the plan was chosen. */
  notice?: string;
}

export interface PlanShape extends KvShape {
  layers: number;
  kvHeads: number;
  /** How many of the last tokens each layer sees. Default: all see all. */
  attentionWindows?: AttentionWindows;
  /** RoPE frequencies of layers with a window, if they are others. */
  localRopeFrequencies?: Float64Array;
}

/** The shape of the model that a profile was made for. */
export const planShapeOf = ({ ropeFrequencies, localRopeFrequencies, ...sizes }: ProfileShape): PlanShape => ({
  ...sizes,
  ropeFrequencies: Float64Array.from(ropeFrequencies),
  localRopeFrequencies: localRopeFrequencies && Float64Array.from(localRopeFrequencies),
});

/** The shape of one layer's codecs. */
export const shapeOfLayer = (shape: PlanShape, layer: number): PlanShape =>
  shape.localRopeFrequencies && shape.attentionWindows?.[layer]
    ? { ...shape, ropeFrequencies: shape.localRopeFrequencies }
    : shape;

/**
 * One spec for all layers, except the first and last `edge` ones, which stay f16. Calibrated codecs use the parameters that
 * the profile has for their layer; mead's bits are allocated over all layers.
 */
export function createPlan(spec: KvSpec, shape: PlanShape, profile?: Profile): Plan {
  const window = windowOf(spec);
  // Devices compile kernels for each codec: layers without learned parameters share one.
  const differs = profile ? usesProfile(spec) : needsProfile(spec);
  const shared = new Map<PlanShape['ropeFrequencies'], KvCodec>();
  const allocation = canAllocateMead(profile) ? allocateSpec(spec, shape.layers, profile) : undefined;
  const codecs = codecsByLayer(shape, window.edge, layer => {
    const learnedFor = (side: Side) => ({
      ...profile?.learned[layer][side],
      ...allocation?.amounts.get(layer)?.[side],
    });
    const own = shapeOfLayer(shape, layer);
    if (differs) return createCodec(spec, own, { key: learnedFor('key'), value: learnedFor('value') });
    const codec = shared.get(own.ropeFrequencies) ?? createCodec(spec, own);
    shared.set(own.ropeFrequencies, codec);
    return codec;
  });
  const { attentionWindows } = shape;
  const { predicted } = allocation ?? {};
  const plan = createPlanFromCodecs(formatSpec(spec), window, codecs, { attentionWindows, predicted, profile });
  return {
    ...plan,
    predicted: measuredDivergence(profile, plan.spec) ?? plan.predicted,
    notice: codecs.find(({ keys }) => keys.notice)?.keys.notice ?? fewSamplesNotice(spec, shape, profile),
  };
}

function fewSamplesNotice(spec: KvSpec, shape: PlanShape, profile?: Profile): string | undefined {
  const samples = profile?.provenance.samples ?? Number.POSITIVE_INFINITY;
  const recommended = recommendedSamples(spec, shape);
  if (samples >= recommended) return undefined;
  const name = formatSpec(spec);
  return (
    `${name} was learned from ${formatCount(samples)} samples per layer and is better with ${formatCount(recommended)}. ` +
    `Run \`kvasir calibrate MODEL --kv ${name} --samples ${recommended}\`, with at least as many --tokens.`
  );
}

const isEdge = (layer: number, layers: number, edge: number) => layer < edge || layer >= layers - edge;

/** The sides of all layers that are quantized. */
export function codedSides(layers: number, edge: number): LayerSide[] {
  const coded = Array.from({ length: layers }, (_, layer) => layer).filter(layer => !isEdge(layer, layers, edge));
  return coded.flatMap(layer => [
    { layer, side: 'key' as const },
    { layer, side: 'value' as const },
  ]);
}

/** One codec per layer; f16 at the edges. */
export function codecsByLayer(shape: PlanShape, edge: number, codecOf: (layer: number) => KvCodec): KvCodec[] {
  const exact = createCodec(F16, shape);
  return Array.from({ length: shape.layers }, (_, layer) =>
    isEdge(layer, shape.layers, edge) ? exact : codecOf(layer),
  );
}

/** Bit allocation of the mead sides of a spec; keys and values of the same codec share one budget. */
function allocateSpec(spec: KvSpec, layers: number, profile: Profile) {
  const amounts = new Map<number, Partial<Record<Side, Learned>>>();
  let predicted: number | undefined;
  const sides = { key: spec.key, value: spec.value };
  for (const base of new Set([spec.key.base, spec.value.base])) {
    const [, bits, uniform] = base.match(/^mead([\d.]+)(u?)$/) ?? [];
    if (!bits) continue;
    const meadSides = codedSides(layers, windowOf(spec).edge).filter(({ side }) => sides[side].base === base);
    const allocation = allocateMead(profile, meadSides, Number(bits), uniform === 'u');
    predicted = (predicted ?? 0) + allocation.predicted;
    meadSides.forEach(({ layer, side }, i) => {
      const learned = { [uniform ? 'mead.bits' : 'mead.nibbles']: allocation.amounts[i] };
      amounts.set(layer, { ...amounts.get(layer), [side]: learned });
    });
  }
  // Sensitivities of the codebooks do not predict the divergence of the uniform code.
  const isPredictable = ({ base }: { base: string }) =>
    base.startsWith('mead') && (!base.endsWith('u') || profile.sensitivities.mead2u !== undefined);
  return { amounts, predicted: Object.values(sides).every(isPredictable) ? predicted : undefined };
}

/** Code bits per value, averaged over keys and values. */
export const codecBits = ({ keys, values }: KvCodec): number => (codeBits(keys) + codeBits(values)) / 2;

export interface CodecsContext extends Pick<PlanShape, 'attentionWindows'>, Pick<Plan, 'predicted'> {
  profile?: Profile;
}

/** A plan from one codec per layer, all with the same window. */
export function createPlanFromCodecs(
  spec: string,
  window: Required<F16Window>,
  codecs: readonly KvCodec[],
  { attentionWindows, predicted, profile }: CodecsContext = {},
): Plan {
  const coded = codecs.filter(codec => codec.keys.spec !== 'f16' || codec.values.spec !== 'f16');
  const counted = coded.length > 0 ? coded : codecs;
  return {
    spec,
    window,
    pageTokens: codecs[0].shape.pageTokens,
    bits: counted.reduce((sum, codec) => sum + codecBits(codec), 0) / counted.length,
    codecs,
    leaf: leafLayout(codecs, { windows: attentionWindows }),
    mode: 'packed',
    predicted,
    errorWeights: errorWeights(codecs, profile),
  };
}

/** The same codecs in another mode: every page is also kept in f16. */
export const withMode = (plan: Plan, mode: KvMode): Plan => ({
  ...plan,
  mode,
  leaf: leafLayout(plan.codecs, {
    exact: mode === 'packed' ? undefined : createCodec(F16, plan.codecs[0].shape),
    windows: plan.leaf.layers.map(({ window }) => window),
  }),
});

/** Max tokens of one sequence in a cache of `bytes`; 0 if not even an empty one fits. */
export function maxTokensIn(plan: Plan, bytes: number): number {
  const blockTokens = tailBlockTokens(plan.pageTokens);
  const sealing = { pageTokens: plan.pageTokens, recent: plan.window.recent };
  const pages = maxPagesIn(plan, bytes - fixedBytes(plan));
  // The pages after the last sealed one and the recent window are in the tail.
  if (pages >= 0) return sealPosition(pages + 1, sealing);
  const blocks = Math.floor((bytes - planBytes(plan, 0)) / f16Bytes(plan, blockTokens));
  return Math.max(0, blocks) * blockTokens;
}

/** Max pages of one sequence in so many bytes; below 0 if these are. */
export function maxPagesIn({ leaf, pageTokens }: Plan, bytes: number): number {
  const onePage = sealedBytes(leaf, 1, pageTokens);
  const all = Math.floor(bytes / onePage);
  if (!leaf.windowPage) return all;
  // The last window is full: each more page takes only the bytes of layers without one.
  const visible = Math.ceil(leaf.windowPage.tokens / pageTokens) + 1;
  const inWindow = visible * leaf.windowPage.bytes;
  return all <= visible ? all : Math.floor((bytes - inWindow) / leaf.bytes);
}

/**
 * Bytes that one sequence needs on its way to `context` tokens: leaves, f16 sinks, the blocks of the tail (all of them before
 * a page is sealed), and the errors of pages.
 */
export function planBytes(plan: Plan, context: number): number {
  const { window, pageTokens, leaf } = plan;
  const sealing = { pageTokens, recent: window.recent };
  const blockTokens = tailBlockTokens(pageTokens);
  const blocks = Math.min(tailBlocks(sealing), Math.ceil(context / blockTokens));
  const tail = f16Bytes(plan, blocks * blockTokens);
  const sealed = sealedBytes(leaf, packedPages(context, sealing), pageTokens);
  return sealed + tail + f16Bytes(plan, window.sink) + pageErrorBytes(leaf);
}

/** The part of it that does not depend on the context, if that is longer than the tail. */
export const fixedBytes = (plan: Plan): number => planBytes(plan, plan.pageTokens + plan.window.recent);

/** Bytes of tokens in f16, all layers. */
export const f16Bytes = ({ codecs, leaf }: Plan, tokens: number): number =>
  f16BlockBytes({ ...codecs[0].shape, layers: leaf.layers }, tokens);
