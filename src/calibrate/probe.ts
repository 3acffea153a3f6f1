/**
 * Measures the sensitivity of each layer's keys and values, by codec; `auto` plans allocate bits by it. Sides are probed
 * alone on a part of each text, those of neighbouring layers together if their ratio is known from learning. Whole plans are
 * then measured on a longer row: they set the scale, since divergence grows with the length of the context, and tell what
 * to expect of each codec.
 */
import { SIDES, type Side } from '../codec/codec.ts';
import type { KvLearned } from '../codec/kv.ts';
import { type KvSpec, specOf } from '../codec/spec.ts';
import type { Engine } from '../engine/engine.ts';
import { measureDivergence } from '../eval/divergence.ts';
import { createProber, type Probe, type SensitivityProber } from '../eval/sensitivity.ts';
import { choosePlan, type PlanSpec } from '../plan/auto.ts';
import { learnedCovers, supportsShape } from '../plan/default-codecs.ts';
import type { PlanShape } from '../plan/plan.ts';
import type { Profile, ProfileContent } from '../plan/profile.ts';
import type { CalibrationJob } from './job.ts';

/** A codec to probe, and the whole plan that sets the scale of its sensitivities. */
interface SensitivityProbe {
  /** Also the name of the sensitivities in the profile. */
  codec: string;
  plan: PlanSpec;
  /** Sensitivities are the divergences to this power: below 1, they differ less. */
  exponent: number;
}

/** By the codec that calibration learned for. */
const PROBES: Record<string, SensitivityProbe> = {
  // Probes on a hundred tokens are noisy: divergences as they are would be worse than equal sensitivities on some kinds of
  // text (docs/lab/mead.md).
  mead2: { codec: 'mead2', plan: specOf('mead2'), exponent: 0.5 },
  tq4: { codec: 'tq2', plan: { auto: 'tq', bits: 3.25, window: {} }, exponent: 1 },
};

/** Measured in addition, so that `auto` can choose from them, if the model and the profile support them. */
const COMPARED_SPECS = [specOf('mead3'), specOf('tq4')];

/** Layers that are probed together if there are estimates to divide the divergence by. */
const GROUP = 4;
/** Plans are measured on rows that are this much longer than what is scored of a probe. */
export const PLAN_LENGTH = 4;

export interface ProbeOptions extends Pick<CalibrationJob, 'heldOut' | 'probedCodecs' | 'checkpoint' | 'codecsHash'> {
  /** Sides are scored on this many tokens of all texts, after as many unscored ones; plans on twice as many of the longest. */
  scored: number;
  /** The profile, with estimates of the sensitivities up to a factor, if there are any. */
  content: ProfileContent;
  shape: PlanShape;
  signal?: AbortSignal;
  onProgress?: (done: number, total: number) => void;
}

export type Measured = Pick<ProfileContent, 'sensitivities' | 'measurements'>;

/** Undefined if the signal aborted it. */
export async function probe(engine: Engine, options: ProbeOptions): Promise<Measured | undefined> {
  const { heldOut, scored, content, shape, probedCodecs, checkpoint, codecsHash, signal, onProgress } = options;
  const probes = probedCodecs.map(codec => PROBES[codec]);
  const groupOf = (codec: string) => (content.sensitivities[codec] ? GROUP : 1);
  const sides = probes.reduce((sum, { codec }) => sum + 2 * Math.ceil(shape.layers / groupOf(codec)), 0);
  const compared = COMPARED_SPECS.filter(spec => isSupported(spec, shape, content.learned[0]));
  const total = sides + probes.length + compared.length;
  const fileName = `probed-${codecsHash}-${scored}`;
  /** Divergences, in the order of measurement. */
  const measured: number[] = (await checkpoint.has(fileName))
    ? JSON.parse(new TextDecoder().decode(await checkpoint.read(fileName)))
    : [];
  const store = async (divergences: readonly number[]) => {
    measured.push(...divergences);
    await checkpoint.write(fileName, new TextEncoder().encode(JSON.stringify(measured)));
  };
  let done = 0;
  let prober: SensitivityProber | undefined;
  const measureSide = async (side: Probe): Promise<number | undefined> => {
    onProgress?.(done, total);
    if (done === measured.length) {
      prober ??= await createProber(engine, alternate(heldOut, 2 * scored), { scored, signal });
      const divergence = await prober?.(side, signal);
      if (divergence === undefined) return undefined;
      await store([divergence]);
    }
    return measured[done++];
  };

  const relative: Record<string, Record<Side, number>[]> = {};
  for (const { codec, exponent } of probes) {
    const spec = specOf(codec);
    const estimates = content.sensitivities[codec];
    const layers = groupOf(codec);
    relative[codec] = content.learned.map(() => ({ key: 0, value: 0 }));
    for (let layer = 0; layer < shape.layers; layer += layers) {
      for (const side of SIDES) {
        const divergence = await measureSide({ spec, layer, layers, side, learned: content.learned });
        if (divergence === undefined) return undefined;
        const shares = estimates?.slice(layer, layer + layers).map(estimate => estimate[side]) ?? [1];
        const total = shares.reduce((sum, share) => sum + share, 0);
        shares.forEach((share, i) => {
          relative[codec][layer + i][side] =
            (Math.max(0, divergence) * (total > 0 ? share / total : 1 / shares.length)) ** exponent;
        });
      }
    }
  }
  onProgress?.(done, total);
  const profile: Profile = { ...content, sensitivities: relative, hash: '' };
  const plans = [...probes.map(({ plan }) => plan), ...compared].map(spec => choosePlan(spec, shape, profile));
  if (done === measured.length) {
    const report = (progress: { done: number; total: number }) =>
      onProgress?.(done + Math.floor((plans.length * progress.done) / progress.total), total);
    const row = longestOf(heldOut).slice(0, PLAN_LENGTH * scored);
    const [, ...rows] = await measureDivergence(engine, row, {
      plans,
      context: row.length,
      signal,
      onProgress: report,
    });
    if (signal?.aborted) return undefined;
    await store(rows.map(({ kld }) => kld));
  }
  const scaled = probes.map(({ codec }, i) => {
    const { predicted } = plans[i];
    const scale = predicted ? measured[sides + i] / predicted : 1;
    return [codec, relative[codec].map(({ key, value }) => ({ key: scale * key, value: scale * value }))];
  });
  return {
    sensitivities: Object.fromEntries(scaled),
    measurements: plans.map(({ spec, bits }, i) => ({ kv: spec, bits, kld: measured[sides + i] })),
  };
}

export const longestOf = (texts: readonly (readonly number[])[]) =>
  texts.reduce((a, b) => (b.length > a.length ? b : a));

/** A row of `count` tokens with two parts of every text, so that its second half has parts of all of them. */
function alternate(texts: readonly (readonly number[])[], count: number): number[] {
  const length = Math.ceil(count / (2 * texts.length));
  const parts = [0, length].flatMap(start => texts.map(ids => ids.slice(start, start + length)));
  return parts.flat().slice(0, count);
}

const isSupported = (spec: KvSpec, shape: PlanShape, learned: KvLearned): boolean =>
  supportsShape(spec, shape) && learnedCovers(learned, spec, shape);
