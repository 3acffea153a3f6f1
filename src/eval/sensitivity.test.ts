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

it('is the divergence of a cache in which one side of one layer is coded, all layers run', async () => {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ tied: false, layers: 3 }))]));
  const shape = { ...file.config, pageTokens };
  const plan = planOf('f16', shape);
  const engine = await loadEngine(file, { plan, context: 64 }, { device: 'js', prefillChunk: 20 });
  const logProbs = async (plan: Plan) => {
    const rows: Float32Array[] = [];
    const onLogits = (position: number, logits: Float32Array) => {
      rows[position] = logSoftmax(logits);
    };
    await teacherForce(engine, plan, row, 32, { onLogits });
    return rows;
  };
  const reference = await logProbs(plan);
  const measure = (await createProber(engine, row, { pageTokens }))!;
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
    for (let t = 32; t < 63; t++) score.add(t, coded[t], reference[t]);
    const divergence = await measure({ spec: 'tq2', layer, side });
    expect(divergence).toBeGreaterThan(0);
    // Below the coded layer f16 has no sinks apart, and sums in another order.
    expect(divergence! / (score.kld / 31)).toBeCloseTo(1, 4);
    seen.add(divergence!);
  }
  expect(seen.size).toBe(4);
  const stop = new AbortController();
  stop.abort();
  expect(await measure({ spec: 'tq2', layer: 0, side: 'key' }, stop.signal)).toBeUndefined();
});
