import { expect, it } from 'vitest';
import { writeGguf } from '../../test/gguf-writer.ts';
import { tinyModel } from '../../test/tiny-model.ts';
import { createCodec } from '../codec/kv.ts';
import { loadEngine, openModelFile } from '../engine/engine.ts';
import { type Plan, planOf, planOfCodecs } from '../plan/plan.ts';
import { createScore, teacherForce } from './divergence.ts';
import { createProber } from './sensitivity.ts';
import { logSoftmax } from './vocabulary.ts';

const pageTokens = 16;
const row = Array.from({ length: 64 }, (_, i) => (i * i * 7 + 31 * i) % 256);
const window = { sink: 4, recent: 0, edge: 0 };

const openTiny = async () => {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ tied: false, layers: 3 }))]));
  const shape = { ...file.config, pageTokens };
  const plan = planOf('f16', shape);
  return { shape, engine: await loadEngine(file, { plan, context: 64 }, { device: 'js', prefillChunk: 20 }) };
};

it('is the divergence of the whole row when one side of one layer is coded', async () => {
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
  const reference = await logProbs(planOf('f16', shape));
  const probe = (await createProber(engine, row, { pageTokens, judged: 24 }))!;
  const seen = new Set<number>();
  for (const [layer, side] of [
    [0, 'key'],
    [1, 'value'],
    [2, 'key'],
    [2, 'value'],
  ] as const) {
    const codecs = [0, 1, 2].map(i => createCodec(i !== layer ? 'f16' : side === 'key' ? 'tq2/f16' : 'f16/tq2', shape));
    const coded = await logProbs(planOfCodecs('tq2', window, codecs));
    const score = createScore(row);
    for (let t = from; t < 63; t++) score.add(t, coded[t], reference[t]);
    const divergence = await probe({ spec: 'tq2', layer, side });
    expect(divergence).toBeGreaterThan(0);
    // Below the coded layer f16 has no sinks apart, and sums in another order.
    expect(divergence! / (score.kld / (63 - from))).toBeCloseTo(1, 4);
    seen.add(divergence!);
  }
  expect(seen.size).toBe(4);
});

it('stops by a signal', async () => {
  const { engine } = await openTiny();
  const probe = (await createProber(engine, row, { pageTokens }))!;
  const stop = new AbortController();
  stop.abort();
  expect(await probe({ spec: 'tq2', layer: 0, side: 'key' }, stop.signal)).toBeUndefined();
  expect(await createProber(engine, row, { pageTokens, signal: stop.signal })).toBeUndefined();
});
