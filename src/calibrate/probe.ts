/**
 * Measures the sensitivity of each layer's keys and values, by codec; `auto` plans allocate bits by it. Each side of each
 * layer is probed alone, on the start of a row. Whole plans are then measured on the whole row and set the scale, since
 * divergence grows with the length of the context.
 */
import type { Side } from '../codec/codec.ts';
import type { Engine } from '../engine/engine.ts';
import { measureDivergence } from '../eval/divergence.ts';
import { createProber, type Probe, type SensitivityProber } from '../eval/sensitivity.ts';
import { choosePlan } from '../plan/auto.ts';
import type { Plan, PlanShape } from '../plan/plan.ts';
import type { Profile, ProfileContent } from '../plan/profile.ts';
import type { Checkpoint } from './checkpoint.ts';

type Sensitivities = ProfileContent['sensitivities'];

/** A codec to probe, and the plans that set the scale of its sensitivities. */
interface SensitivityMeasurement {
  spec: string;
  /** Probed if calibration learned for this codec. */
  learnedFor: string;
  /** The plan to measure, by the name of the sensitivities in the profile. */
  plans: Record<string, string>;
}

const MEASUREMENTS: SensitivityMeasurement[] = [
  { spec: 'tq2-c', learnedFor: 'tq4-c', plans: { 'tq2-c': 'auto-tq:3.25' } },
  // The uniform code has the same relative sensitivities as the codebooks, at another scale.
  { spec: 'mead2', learnedFor: 'mead2', plans: { mead2: 'mead2', mead2u: 'mead2u' } },
];

const SIDES = ['key', 'value'] as const;

export interface ProbeOptions {
  /** Token ids. Whole plans are scored on the second half. */
  row: readonly number[];
  /** Sides are scored on this many tokens after as many unscored ones. */
  scored: number;
  /** The profile without sensitivities. */
  content: ProfileContent;
  shape: PlanShape;
  codecs: readonly string[];
  checkpoint: Checkpoint;
  /** Part of the file name. */
  codecsHash: string;
  signal?: AbortSignal;
  onProgress?: (done: number, total: number) => void;
}

/** By codec, one entry per layer; undefined if the signal aborted it. */
export async function probe(engine: Engine, options: ProbeOptions): Promise<Sensitivities | undefined> {
  const { row, scored, content, shape, codecs, checkpoint, codecsHash, signal, onProgress } = options;
  const measures = MEASUREMENTS.filter(({ learnedFor }) => codecs.includes(learnedFor));
  const sides = measures.length * 2 * shape.layers;
  const total = sides + measures.reduce((sum, { plans }) => sum + Object.keys(plans).length, 0);
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
      prober ??= await createProber(engine, row.slice(0, 2 * scored), { scored, signal });
      const divergence = await prober?.(side, signal);
      if (divergence === undefined) return undefined;
      await store([divergence]);
    }
    return measured[done++];
  };

  const plansToMeasure: { name: string; probed: Record<Side, number>[]; plan: Plan }[] = [];
  for (const { spec, plans } of measures) {
    const probed = content.learned.map(() => ({ key: 0, value: 0 }));
    for (const [layer, learned] of content.learned.entries()) {
      for (const side of SIDES) {
        const divergence = await measureSide({ spec, layer, side, learned });
        if (divergence === undefined) return undefined;
        probed[layer][side] = divergence;
      }
    }
    for (const [name, planSpec] of Object.entries(plans)) {
      const profile: Profile = { ...content, sensitivities: { [spec]: probed, [name]: probed }, hash: '' };
      plansToMeasure.push({ name, probed, plan: choosePlan(planSpec, shape, profile) });
    }
  }
  onProgress?.(done, total);
  if (done === measured.length) {
    const plans = plansToMeasure.map(({ plan }) => plan);
    const [, ...rows] = await measureDivergence(engine, row, { plans, context: row.length, signal });
    if (signal?.aborted) return undefined;
    await store(rows.map(({ kld }) => kld));
  }
  const scaled = plansToMeasure.map(({ name, probed, plan }, i) => {
    const scale = plan.predicted ? measured[sides + i] / plan.predicted : 1;
    return [name, probed.map(({ key, value }) => ({ key: scale * key, value: scale * value }))];
  });
  return Object.fromEntries(scaled);
}
