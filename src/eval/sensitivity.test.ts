import { expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { SIDES } from '../codec/codec.ts';
import { createCodec } from '../codec/kv.ts';
import { DEFAULT_WINDOW, parseSpec } from '../codec/spec.ts';
import { loadEngine, openModelFile } from '../engine/engine.ts';
import { logSoftmax } from '../engine/log-probs.ts';
import { createPlan, createPlanFromCodecs, type Plan } from '../plan/plan.ts';
import { createScore, teacherForce } from './divergence.ts';
import { createProber } from './sensitivity.ts';

/** The first page has sinks and codes. */
const pageTokens = 32;
const row = Array.from({ length: 64 }, (_, i) => (i * i * 7 + 31 * i) % 256);

const openTiny = async () => {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ tied: false, layers: 3 }))]));
  const shape = { ...file.config, pageTokens };
  const plan = createPlan(parseSpec('f16'), shape);
  return {
    shape,
    engine: await loadEngine(file, { plan, context: 64 }, { device: 'js', prefillChunk: 20 }),
  };
};

it('is the divergence of the whole row with one side of one layer quantized', async () => {
  const { engine, shape } = await openTiny();
  const from = 40;
  const logProbs = async (plan: Plan) => {
    const rows: Float32Array[] = [];
    await teacherForce(engine, plan, row, from, {
      onLogits(position, logits) {
        rows[position] = logSoftmax(logits);
      },
    });
    return rows;
  };
  const reference = await logProbs(createPlan(parseSpec('f16'), shape));
  const probe = (await createProber(engine, row, { pageTokens, scored: 24 }))!;
  const measured = new Map<string, number>();
  const bytes = engine.device.allocatedBytes;
  for (const [layer, side] of [0, 1, 2].flatMap(layer => [[layer, 'key'] as const, [layer, 'value'] as const])) {
    const codecs = [0, 1, 2].map(i => createCodec(i !== layer ? 'f16' : side === 'key' ? 'tq2/f16' : 'f16/tq2', shape));
    const coded = await logProbs(createPlanFromCodecs('tq2', DEFAULT_WINDOW, codecs));
    const score = createScore(row);
    for (let t = from; t < 63; t++) score.add(t, coded[t], reference[t]);
    const divergence = await probe({ spec: parseSpec('tq2'), layer, side });
    expect(divergence).toBeGreaterThan(1e-4);
    // Not exact: the f16 layers below have no separate sinks in the probe, and sum in another order.
    expect(divergence! / (score.kld / (63 - from))).toBeCloseTo(1, 4);
    measured.set(`${layer} ${side}`, divergence!);
  }
  // The sides differ by far more than the tolerance above, so a probe of the wrong layer or side would fail.
  const sorted = [...measured.values()].sort((a, b) => a - b);
  for (let i = 1; i < sorted.length; i++) expect(sorted[i] / sorted[i - 1]).toBeGreaterThan(1.001);
  expect(engine.device.allocatedBytes).toBe(bytes);

  // A probe leaves nothing behind, f16 itself diverges by nothing, and more bits by less.
  expect(await probe({ spec: parseSpec('tq2'), layer: 1, side: 'key' })).toBe(measured.get('1 key'));
  expect(Math.abs((await probe({ spec: parseSpec('f16'), layer: 1, side: 'key' }))!)).toBeLessThan(1e-6);
  for (const side of SIDES)
    expect(4 * (await probe({ spec: parseSpec('tq4'), layer: 0, side }))!).toBeLessThan(measured.get(`0 ${side}`)!);
});

it('is zero while no page is sealed: every token is read in f16', async () => {
  const { engine } = await openTiny();
  const probe = (await createProber(engine, row.slice(0, 33), { pageTokens, scored: 2 }))!;
  expect(Math.abs((await probe({ spec: parseSpec('tq2'), layer: 0, side: 'key' }))!)).toBeLessThan(1e-6);
  const longer = (await createProber(engine, row.slice(0, 34), { pageTokens, scored: 2 }))!;
  expect(await longer({ spec: parseSpec('tq2'), layer: 0, side: 'key' })).toBeGreaterThan(1e-4);
});

it('is undefined if a signal aborts it', async () => {
  const { engine } = await openTiny();
  const probe = (await createProber(engine, row, { pageTokens }))!;
  const stop = new AbortController();
  stop.abort();
  expect(await probe({ spec: parseSpec('tq2'), layer: 0, side: 'key' }, stop.signal)).toBeUndefined();
  expect(await createProber(engine, row, { pageTokens, signal: stop.signal })).toBeUndefined();
});
