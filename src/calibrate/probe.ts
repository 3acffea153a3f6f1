/**
 * How much each layer's keys and values matter, by codec: what plans share bits out by. Each side of each layer is
 * probed by itself; whole plans then say what all of them make together.
 */
import type { Side } from '../codec/codec.ts';
import type { Engine } from '../engine/engine.ts';
import { createProber, type Prober } from '../eval/sensitivity.ts';
import { choosePlan } from '../plan/auto.ts';
import type { PlanShape } from '../plan/plan.ts';
import type { Profile, ProfileContent } from '../plan/profile.ts';
import type { State } from './state.ts';

type Sensitivities = ProfileContent['sensitivities'];

/** A codec whose sides are probed where `learned` was, and the plans that set the scale of those that go by it. */
interface Measure {
  spec: string;
  learned: string;
  /** The part of the tokens that its probes are judged by. */
  part: number;
  /** By the name that a plan looks for: the plan that was run. */
  plans: Record<string, string>;
}

const MEASURES: Measure[] = [
  // There are but four amounts to choose from: less will do.
  { spec: 'tq2-c', learned: 'tq4-c', part: 1 / 2, plans: { 'tq2-c': 'auto-tq:3.25' } },
  // Steps lose where books do, but more: they have a scale of their own.
  { spec: 'mead2', learned: 'mead2', part: 1, plans: { mead2: 'mead2', mead2u: 'mead2u' } },
];

const SIDES = ['key', 'value'] as const;

export interface ProbeOptions {
  /** The text, and how many of its last tokens are judged. */
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
  let done = 0;
  let prober: Prober | undefined;
  const measure = async (run: (prober: Prober) => Promise<number | undefined>) => {
    onProgress?.(done, total);
    if (done === measured.length) {
      prober ??= await createProber(engine, row, { judged, signal });
      const divergence = prober && (await run(prober));
      if (divergence === undefined) return undefined;
      measured.push(divergence);
      await state.write(known, new TextEncoder().encode(JSON.stringify(measured)));
    }
    return measured[done++];
  };

  const sensitivities: Record<string, Record<Side, number>[]> = {};
  for (const { spec, part, plans } of measures) {
    const some = Math.ceil(part * judged);
    const probed = content.learned.map(() => ({ key: 0, value: 0 }));
    for (const [layer, learned] of content.learned.entries()) {
      for (const side of SIDES) {
        const divergence = await measure(prober => prober.side({ spec, layer, side, learned, judged: some }, signal));
        if (divergence === undefined) return undefined;
        probed[layer][side] = divergence;
      }
    }
    for (const [name, planSpec] of Object.entries(plans)) {
      const profile: Profile = { ...content, sensitivities: { [spec]: probed, [name]: probed }, hash: '' };
      const plan = choosePlan(planSpec, shape, profile);
      const divergence = await measure(prober => prober.whole(plan, signal));
      if (divergence === undefined) return undefined;
      const scale = plan.predicted ? divergence / plan.predicted : 1;
      sensitivities[name] = probed.map(({ key, value }) => ({ key: scale * key, value: scale * value }));
    }
  }
  return sensitivities;
}
