/** Sensitivities of a tiny model against whole runs with one side of one layer quantized. */

import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { SIDES, type Side } from '../codec/codec.ts';
import { createCodec } from '../codec/kv.ts';
import { DEFAULT_WINDOW, parseSpec } from '../codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../engine/engine.ts';
import { measureDivergence } from '../eval/divergence.ts';
import { choosePlan, parsePlanSpec } from '../plan/auto.ts';
import { createPlan, createPlanFromCodecs, type PlanShape } from '../plan/plan.ts';
import type { Profile, ProfileContent } from '../plan/profile.ts';
import { openCheckpoint } from './checkpoint.ts';
import { type ProbeOptions, probe } from './probe.ts';

const row = Array.from({ length: 200 }, (_, i) => (i * i * 7 + 31 * i) % 256);
/** Probes run on the first 192 tokens and score the last 96 of them: those from 128 on read a sealed page. */
const scored = 96;

let engine: Engine;
let shape: PlanShape;
let content: ProfileContent;

beforeAll(async () => {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ tied: false, layers: 2 }))]));
  shape = planShape(file);
  const plan = createPlan(parseSpec('f16'), shape);
  engine = await loadEngine(file, { plan, context: 256 }, { device: 'wasm', threads: 1, precise: true });
  const layer = { key: {}, value: {} };
  content = {
    learned: [layer, layer],
    provenance: { samples: 64 },
    sensitivities: {},
    measurements: [],
  } as unknown as ProfileContent;
});
afterAll(() => engine.dispose());

const options = async (): Promise<ProbeOptions> => ({
  heldOut: [row],
  scored,
  content,
  shape,
  probedCodecs: ['tq4'],
  checkpoint: await openCheckpoint(await mkdtemp(join(tmpdir(), 'kvasir-probe-'))),
  codecsHash: 'x',
});

/** The divergence of whole runs over the first 192 tokens, with one side of one layer in tq2 and all else in f16. */
async function measureSide(layer: number, side: Side): Promise<number> {
  const exact = createCodec('f16', shape);
  const coded = createCodec(side === 'key' ? 'tq2/f16' : 'f16/tq2', shape);
  const codecs = [0, 1].map(i => (i === layer ? coded : exact));
  const plan = createPlanFromCodecs('one side', DEFAULT_WINDOW, codecs);
  const [, { kld }] = await measureDivergence(engine, row, { plans: [plan], context: 192, from: 96, rows: 1 });
  return kld;
}

it('sensitivities are the divergences of single sides, scaled so that the predicted divergence of a plan is its measured one', async () => {
  const measured = await probe(engine, await options());
  expect(Object.keys(measured!.sensitivities)).toEqual(['tq2']);
  const sensitivities = measured!.sensitivities.tq2;
  const flat = sensitivities.flatMap(({ key, value }) => [key, value]);
  expect(flat).toHaveLength(4);
  for (const sensitivity of flat) expect(sensitivity).toBeGreaterThan(1e-6);

  const wanted: number[] = [];
  for (const layer of [0, 1]) for (const side of SIDES) wanted.push(await measureSide(layer, side));
  const scale = flat[0] / wanted[0];
  flat.forEach((sensitivity, i) => {
    expect(sensitivity / (scale * wanted[i])).toBeCloseTo(1, 3);
  });
  expect(Math.max(...flat) / Math.min(...flat)).toBeGreaterThan(1.1);

  const profile: Profile = { ...content, ...measured!, hash: '' };
  const plan = choosePlan(parsePlanSpec('auto-tq:3.25'), shape, profile);
  const plans = [plan, createPlan(parseSpec('tq4'), shape)];
  const [, ...whole] = await measureDivergence(engine, row, { plans, context: row.length });
  expect(plan.predicted! / whole[0].kld).toBeCloseTo(1, 3);
  // The profile has learned nothing for oaken and mead.
  expect(measured!.measurements).toEqual(whole.map(({ kv, bits, kld }) => ({ kv, bits, kld })));
});

it('neighbouring layers with estimates are probed together, and share the divergence', async () => {
  const estimated = [
    { key: 2, value: 3 },
    { key: 5, value: 1 },
  ];
  const steps: string[] = [];
  const measured = await probe(engine, {
    ...(await options()),
    content: { ...content, sensitivities: { tq2: estimated } },
    onProgress: (done, total) => steps.push(`${done}/${total}`),
  });
  const [first, second] = measured!.sensitivities.tq2;
  expect(first.key / second.key).toBeCloseTo(2 / 5, 6);
  expect(first.value / second.value).toBeCloseTo(3 / 1, 6);
  expect([steps[0], steps.at(-1)]).toEqual(['0/4', '4/4']);
});

it('continues after an interruption with the same result', async () => {
  const all = await probe(engine, await options());
  const stop = new AbortController();
  const again = await options();
  const seen: string[] = [];
  const interrupted = await probe(engine, {
    ...again,
    signal: stop.signal,
    onProgress(done, total) {
      seen.push(`${done}/${total}`);
      if (done === 2) stop.abort();
    },
  });
  expect(interrupted).toBeUndefined();
  expect(seen).toEqual(['0/6', '1/6', '2/6']);
  expect(await probe(engine, again)).toEqual(all);
});
