/**
 * Measures the sensitivity of each layer's keys and values, by codec; `auto` plans allocate bits by it. Each side of each
 * layer is probed alone, on a part of each text. Whole plans are then measured on the whole row: they set the scale, since
 * divergence grows with the length of the context, and tell what to expect of each codec.
 */
import type { Side } from '../codec/codec.ts';
import type { KvLearned } from '../codec/kv.ts';
import type { Engine } from '../engine/engine.ts';
import { measureDivergence } from '../eval/divergence.ts';
import { createProber, type Probe, type SensitivityProber } from '../eval/sensitivity.ts';
import { choosePlan } from '../plan/auto.ts';
import { learnedCovers, supportsShape } from '../plan/default-codecs.ts';
import type { Plan, PlanShape } from '../plan/plan.ts';
import type { Profile, ProfileContent } from '../plan/profile.ts';
import type { Checkpoint } from './checkpoint.ts';

/** A codec to probe, and the plans that set the scale of its sensitivities. */
interface SensitivityProbe {
  spec: string;
  /** The plan to measure, by the name of the sensitivities in the profile. */
  plans: Record<string, string>;
  /** Sensitivities are the divergences to this power: below 1, they differ less. */
  exponent: number;
}

/** By the codec that calibration learned for. */
const PROBES: Record<string, SensitivityProbe> = {
  // The uniform code has the same relative sensitivities as the codebooks, at another scale. Probes on a few hundred tokens
  // are noisy: divergences as they are would be worse than equal sensitivities on some kinds of text (docs/lab/mead.md).
  mead2: { spec: 'mead2', plans: { mead2: 'mead2', mead2u: 'mead2u' }, exponent: 0.5 },
  'tq4-c': { spec: 'tq2-c', plans: { 'tq2-c': 'auto-tq:3.25' }, exponent: 1 },
};

/** Measured in addition, so that `auto` can choose from them, if the model and the profile support them. */
const COMPARED_SPECS = ['mead3', 'tq4', 'oaken'];

const SIDES = ['key', 'value'] as const;

export interface ProbeOptions {
  /** Token ids of several texts, together one row. Whole plans are scored on its second half. */
  heldOut: readonly (readonly number[])[];
  /** Sides are scored on this many tokens of all texts, after as many unscored ones. */
  scored: number;
  /** The profile without sensitivities. */
  content: ProfileContent;
  shape: PlanShape;
  /** The codecs whose sensitivities are measured. */
  probedCodecs: readonly string[];
  checkpoint: Checkpoint;
  /** Part of the file name. */
  codecsHash: string;
  signal?: AbortSignal;
  onProgress?: (done: number, total: number) => void;
}

export type Measured = Pick<ProfileContent, 'sensitivities' | 'measurements'>;

/** Undefined if the signal aborted it. */
export async function probe(engine: Engine, options: ProbeOptions): Promise<Measured | undefined> {
  const { heldOut, scored, content, shape, probedCodecs, checkpoint, codecsHash, signal, onProgress } = options;
  const probes = probedCodecs.map(codec => PROBES[codec]);
  const sides = probes.length * 2 * shape.layers;
  const compared = COMPARED_SPECS.filter(spec => isSupported(spec, shape, content.learned[0]));
  const total = sides + probes.reduce((sum, { plans }) => sum + Object.keys(plans).length, compared.length);
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

  const scales: { name: string; probed: Record<Side, number>[]; plan: Plan }[] = [];
  for (const { spec, plans, exponent } of probes) {
    const probed = content.learned.map(() => ({ key: 0, value: 0 }));
    for (const [layer, learned] of content.learned.entries()) {
      for (const side of SIDES) {
        const divergence = await measureSide({ spec, layer, side, learned });
        if (divergence === undefined) return undefined;
        probed[layer][side] = Math.max(0, divergence) ** exponent;
      }
    }
    for (const [name, planSpec] of Object.entries(plans)) {
      const profile: Profile = { ...content, sensitivities: { [spec]: probed, [name]: probed }, hash: '' };
      scales.push({ name, probed, plan: choosePlan(planSpec, shape, profile) });
    }
  }
  onProgress?.(done, total);
  const relative = Object.fromEntries(scales.map(({ name, probed }) => [name, probed]));
  const profile: Profile = { ...content, sensitivities: relative, hash: '' };
  const plans = [...scales.map(({ plan }) => plan), ...compared.map(spec => choosePlan(spec, shape, profile))];
  if (done === measured.length) {
    const report = (progress: { done: number; total: number }) =>
      onProgress?.(done + Math.floor((plans.length * progress.done) / progress.total), total);
    const row = alternate(heldOut, heldOut.flat().length);
    const [, ...rows] = await measureDivergence(engine, row, {
      plans,
      context: row.length,
      signal,
      onProgress: report,
    });
    if (signal?.aborted) return undefined;
    await store(rows.map(({ kld }) => kld));
  }
  const scaled = scales.map(({ name, probed, plan }, i) => {
    const scale = plan.predicted ? measured[sides + i] / plan.predicted : 1;
    return [name, probed.map(({ key, value }) => ({ key: scale * key, value: scale * value }))];
  });
  return {
    sensitivities: Object.fromEntries(scaled),
    measurements: plans.map(({ spec, bits }, i) => ({ kv: spec, bits, kld: measured[sides + i] })),
  };
}

/** A row of `count` tokens with two parts of every text, so that its second half has parts of all of them. */
function alternate(texts: readonly (readonly number[])[], count: number): number[] {
  const length = Math.ceil(count / (2 * texts.length));
  const parts = [0, length].flatMap(start => texts.map(ids => ids.slice(start, start + length)));
  return parts.flat().slice(0, count);
}

const isSupported = (spec: string, shape: PlanShape, learned: KvLearned): boolean =>
  supportsShape(spec, shape) && learnedCovers(learned, spec, shape);
