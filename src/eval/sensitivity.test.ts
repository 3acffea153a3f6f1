import { expect, it } from 'vitest';
import { writeGguf } from '../../test/gguf-writer.ts';
import { tinyModel } from '../../test/tiny-model.ts';
import { createCodec } from '../codec/kv.ts';
import { loadEngine, openModelFile } from '../engine/engine.ts';
import { type Plan, planOf, planOfCodecs } from '../plan/plan.ts';
import { createScore, measureDivergence, teacherForce } from './divergence.ts';
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

it('is the divergence when one side of one layer is coded, and what came before the judged tokens is as in f16', async () => {
  const { engine, shape } = await openTiny();
  const { device } = engine;
  const from = 40;
  /** [layer][token]. */
  const kept = [0, 1, 2].map(() => ({ k: [] as Float32Array[], v: [] as Float32Array[] }));
  /** The whole row; keys and values of tokens before `from` are kept, or replaced by those kept. */
  const logProbs = async (plan: Plan, replace: boolean) => {
    const rows: Float32Array[] = [];
    const done = [0, 0, 0];
    await teacherForce(engine, plan, row, from, {
      onLogits(position, logits) {
        rows[position] = logSoftmax(logits);
      },
      async observe(layer, seen) {
        for (let r = 0; r < seen.rows; r++, done[layer]++) {
          if (done[layer] >= from) continue;
          for (const side of ['k', 'v'] as const) {
            if (replace) device.write(seen[side], r, kept[layer][side][done[layer]]);
            else kept[layer][side].push(await device.read(seen[side], r));
          }
        }
      },
    });
    return rows;
  };
  const reference = await logProbs(planOf('f16', shape), false);
  const prober = (await createProber(engine, row, { pageTokens, judged: 24 }))!;
  const seen = new Set<number>();
  for (const [layer, side] of [
    [0, 'key'],
    [1, 'value'],
    [2, 'key'],
    [2, 'value'],
  ] as const) {
    const codecs = [0, 1, 2].map(i => createCodec(i !== layer ? 'f16' : side === 'key' ? 'tq2/f16' : 'f16/tq2', shape));
    const coded = await logProbs(planOfCodecs('tq2', window, codecs), true);
    const score = createScore(row);
    for (let t = from; t < 63; t++) score.add(t, coded[t], reference[t]);
    const divergence = await prober.side({ spec: 'tq2', layer, side });
    expect(divergence).toBeGreaterThan(0);
    // Below the coded layer f16 has no sinks apart, and sums in another order.
    expect(divergence! / (score.kld / (63 - from))).toBeCloseTo(1, 4);
    seen.add(divergence!);
  }
  expect(seen.size).toBe(4);
});

it('is that of a whole plan with all tokens run, and stops by a signal', async () => {
  const { engine, shape } = await openTiny();
  const prober = (await createProber(engine, row, { pageTokens }))!;
  const plan = planOf('tq2', shape);
  const [, measured] = await measureDivergence(engine, row, { plans: [plan], context: 64 });
  expect(await prober.whole(plan)).toBeCloseTo(measured.kld, 6);
  const stop = new AbortController();
  stop.abort();
  expect(await prober.side({ spec: 'tq2', layer: 0, side: 'key' }, stop.signal)).toBeUndefined();
  expect(await prober.whole(plan, stop.signal)).toBeUndefined();
});
