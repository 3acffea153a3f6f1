/**
 * How much each layer's keys and values matter, by codec: what plans share bits out by. Each side of each layer is
 * probed by itself, on the beginning of a row; whole plans then say what all of them make together, on all of it, since
 * divergence grows with what is read.
 */
import type { Side } from '../codec/codec.ts';
import type { Engine } from '../engine/engine.ts';
import { measureDivergence } from '../eval/divergence.ts';
import { createProber, type Probe, type Prober } from '../eval/sensitivity.ts';
import { choosePlan } from '../plan/auto.ts';
import type { Plan, PlanShape } from '../plan/plan.ts';
import type { Profile, ProfileContent } from '../plan/profile.ts';
import type { State } from './state.ts';

type Sensitivities = ProfileContent['sensitivities'];

/** A codec whose sides are probed where `learned` was, and the plans that set the scale of those that go by it. */
interface Measure {
  spec: string;
  learned: string;
  /** By the name that a plan looks for: the plan that was run. */
  plans: Record<string, string>;
}

const MEASURES: Measure[] = [
  { spec: 'tq2-c', learned: 'tq4-c', plans: { 'tq2-c': 'auto-tq:3.25' } },
  // Steps lose where books do, but more: they have a scale of their own.
  { spec: 'mead2', learned: 'mead2', plans: { mead2: 'mead2', mead2u: 'mead2u' } },
];

const SIDES = ['key', 'value'] as const;

export interface ProbeOptions {
  /** The text. Whole plans are judged by its second half, sides by so many tokens behind as many others. */
  row: readonly number[];
  judged: number;
  /** All but what is measured here. */
  content: ProfileContent;
  shape: PlanShape;
  codecs: readonly string[];
  state: State;
  /** Of the codecs, in the name of the file. */
  mark: string;
  signal?: AbortSignal;
  onProgress?: (done: number, total: number) => void;
}

/** By probe and layer; undefined if the signal came first. */
export async function probe(engine: Engine, options: ProbeOptions): Promise<Sensitivities | undefined> {
  const { row, judged, content, shape, codecs, state, mark, signal, onProgress } = options;
  const measures = MEASURES.filter(({ learned }) => codecs.includes(learned));
  const sides = measures.length * 2 * shape.layers;
  const total = sides + measures.reduce((sum, { plans }) => sum + Object.keys(plans).length, 0);
  const known = `probed-${mark}-${judged}`;
  /** In the order of the work. */
  const measured: number[] = (await state.has(known))
    ? JSON.parse(new TextDecoder().decode(await state.read(known)))
    : [];
  const keep = async (divergences: readonly number[]) => {
    measured.push(...divergences);
    await state.write(known, new TextEncoder().encode(JSON.stringify(measured)));
  };
  let done = 0;
  let prober: Prober | undefined;
  const measureSide = async (side: Probe): Promise<number | undefined> => {
    onProgress?.(done, total);
    if (done === measured.length) {
      prober ??= await createProber(engine, row.slice(0, 2 * judged), { judged, signal });
      const divergence = await prober?.(side, signal);
      if (divergence === undefined) return undefined;
      await keep([divergence]);
    }
    return measured[done++];
  };

  const whole: { name: string; probed: Record<Side, number>[]; plan: Plan }[] = [];
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
      whole.push({ name, probed, plan: choosePlan(planSpec, shape, profile) });
    }
  }
  onProgress?.(done, total);
  if (done === measured.length) {
    const plans = whole.map(({ plan }) => plan);
    const [, ...rows] = await measureDivergence(engine, row, { plans, context: row.length, signal });
    if (signal?.aborted) return undefined;
    await keep(rows.map(({ kld }) => kld));
  }
  const scaled = whole.map(({ name, probed, plan }, i) => {
    const scale = plan.predicted ? measured[sides + i] / plan.predicted : 1;
    return [name, probed.map(({ key, value }) => ({ key: scale * key, value: scale * value }))];
  });
  return Object.fromEntries(scaled);
}
