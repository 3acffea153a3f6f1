/** Statistics of a tiny model against their definition in f64. */

import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { roundF16 } from '../../test/support/round-f16.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { SIDES } from '../codec/codec.ts';
import { applyRope } from '../codec/parts/rope.ts';
import { parseSpec } from '../codec/spec.ts';
import { type Engine, loadEngine, openModelFile } from '../engine/engine.ts';
import { step } from '../engine/step.ts';
import { readTensorAsFloat32, requireTensor } from '../model/gguf.ts';
import { type AttentionWeights, SINKS } from '../plan/attention-sensitivity.ts';
import { outputGrams, valueMetric } from '../plan/metric.ts';
import { createPlan } from '../plan/plan.ts';
import {
  errorMetric,
  type LayerRecord,
  maxSamples,
  observeLayer,
  outputErrorPerLoss,
  type StatisticsShape,
  sampledPositions,
  sampledQueries,
  samplesFromRecords,
  viewRecord,
} from '../plan/statistics.ts';
import { DeviceError } from '../util/errors.ts';
import { type Checkpoint, openCheckpoint } from './checkpoint.ts';
import { collect, readRecords } from './collect.ts';
import type { ObserveRequest } from './tasks.ts';
import { createWorkers, type Workers } from './workers.ts';

const context = 50;
const rows = [1, 2, 3].map(salt => Array.from({ length: context }, (_, i) => (i * i * 7 + 31 * i * salt) % 256));
type Vectors = { x: Float32Array; q: Float32Array; k: Float32Array; v: Float32Array };

let engine: Engine;
let shape: StatisticsShape;
let checkpoint: Checkpoint;
const attentionWeights: AttentionWeights[] = [];
const records: LayerRecord[][] = [];
/** [row][layer]. */
const seen: Vectors[][] = [];

beforeAll(async () => {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ heads: 6, kvHeads: 2, headDim: 16 }))]));
  engine = await loadEngine(
    file,
    { plan: createPlan(parseSpec('f16'), file.config), context },
    { device: 'js', prefillChunk: 20 },
  );
  const { heads, kvHeads, headDim, attentionScale: scale } = engine.config;
  const attentionShape = {
    heads,
    kvHeads,
    headDim,
    scale,
    ropeFrequencies: engine.rope.frequencies,
    context,
    pageTokens: 16,
    softcap: 0,
  };
  shape = { ...attentionShape, samples: 20, queryStep: 8, seed: 5 };
  for (const layer of [0, 1])
    attentionWeights.push({
      grams: outputGrams(
        await readTensorAsFloat32(file.gguf, requireTensor(file.gguf, `blk.${layer}.attn_output.weight`)),
        shape,
      ),
    });
  checkpoint = await openCheckpoint(await mkdtemp(join(tmpdir(), 'kvasir-state-')));
  expect(await collect(engine, rows, { shape, attentionWeights, checkpoint, workers: await createWorkers(0) })).toBe(
    true,
  );
  for (const layer of [0, 1]) {
    const bytes = await readRecords(checkpoint, shape, rows.length, layer);
    records.push(bytes.map(each => viewRecord(shape, each)));
  }
  for (const tokens of rows) {
    const layers: Vectors[] = [];
    await step(
      engine,
      [{ sequence: engine.openSequence(createPlan(parseSpec('f16'), engine.config), context), tokens, logits: 'none' }],
      {
        async observe(layer, { rows, x, q, k, v }) {
          const append = async (before: Float32Array | undefined, tensor: typeof q) => {
            const batch = await Promise.all(
              Array.from({ length: rows }, (_, row) => engine.device.readRows(tensor, row)),
            );
            return Float32Array.from([...(before ?? []), ...batch.flatMap(row => [...row])]);
          };
          const before = layers[layer] ?? {};
          layers[layer] = {
            x: await append(before.x, x),
            q: await append(before.q, q),
            k: await append(before.k, k),
            v: await append(before.v, v),
          };
        },
      },
    );
    seen.push(layers);
  }
});

/** Head `head` of token t. */
const vectorOf = (x: Float32Array, heads: number, t: number, head: number) =>
  Array.from(x.subarray((t * heads + head) * 16, (t * heads + head + 1) * 16));
const dot = (a: ArrayLike<number>, b: ArrayLike<number>) => Array.from(a).reduce((sum, x, i) => sum + x * b[i], 0);

/** The sensitivity to errors in keys and values, token by token, by its definition. */
function expectedSensitivity(layer: number, row: number, kv: number) {
  const { q, k, v } = seen[row][layer];
  const out = {
    key: Array(context).fill(0),
    value: Array(context).fill(0),
    shares: [0, 0, 0],
    metric: Array(256).fill(0),
  };
  for (const t of sampledQueries(shape, row)) {
    const values = Array.from({ length: t + 1 }, (_, n) => vectorOf(v, 2, n, kv));
    for (const g of [0, 1, 2]) {
      const query = vectorOf(q, 6, t, 3 * kv + g);
      const weights = values.map((_, n) => Math.exp(dot(query, vectorOf(k, 2, n, kv)) / 4));
      const total = weights.reduce((a, b) => a + b);
      const output = query.map((_, i) => values.reduce((sum, value, n) => sum + (weights[n] / total) * value[i], 0));
      const gram = attentionWeights[layer].grams.subarray((3 * kv + g) * 256, (3 * kv + g + 1) * 256);
      const length = (x: number[]) => x.reduce((sum, a, i) => sum + a * dot(gram.subarray(16 * i, 16 * i + 16), x), 0);
      for (let n = SINKS; n < Math.floor(t / 16) * 16; n++) {
        const square = (weights[n] / total) ** 2;
        const weight = square * length(values[n].map((x, i) => x - output[i]));
        out.key[n] += weight;
        out.value[n] += (square * output.reduce((sum, _, i) => sum + gram[17 * i], 0)) / 16;
        out.shares[g] += square;
        const rotated = Float64Array.from(query);
        applyRope(rotated, shape.ropeFrequencies, -Math.floor(n / 16) * 16);
        for (let i = 0; i < 256; i++) out.metric[i] += weight * rotated[i >> 4] * rotated[i & 15];
      }
    }
  }
  return out;
}

describe('samples', () => {
  it('are spread over the row between sinks and last page, and reproducible', () => {
    const positions = sampledPositions(shape, 1);
    expect(positions).toEqual(sampledPositions(shape, 1));
    expect(positions).not.toEqual(sampledPositions(shape, 2));
    expect(new Set(positions).size).toBe(20);
    expect([positions[0] >= SINKS, positions[0] < SINKS + 3, positions[19] >= 46, positions[19] < 48]).not.toContain(
      false,
    );
    expect(sampledPositions({ ...shape, samples: maxSamples(shape) }, 0)).toEqual(
      Int32Array.from({ length: 48 - SINKS }, (_, i) => i + SINKS),
    );
  });

  it.each(SIDES)('hold each %s rounded to f16, with its position', side => {
    const samples = samplesFromRecords(shape, records[1], side, new Float64Array());
    expect(samples.count).toBe(60);
    for (const [row, layers] of seen.entries()) {
      sampledPositions(shape, row).forEach((t, i) => {
        const n = row * 20 + i;
        expect(samples.positions[n]).toBe(t);
        for (const head of [0, 1]) {
          const wanted = vectorOf(side === 'key' ? layers[1].k : layers[1].v, 2, t, head).map(roundF16);
          const at = (head * 60 + n) * 16;
          expect(Array.from(samples.vectors.subarray(at, at + 16))).toEqual(wanted);
        }
      });
    }
    const x = seen.map(layers => (side === 'key' ? layers[1].k : layers[1].v));
    const largest = Math.max(
      ...x.flatMap(each => Array.from({ length: context - SINKS }, (_, t) => Math.abs(each[(t + SINKS) * 32 + 17]))),
    );
    expect(samples.maxima[17]).toBe(largest);
  });

  it('are weighted by the sensitivity to errors of the key or value', () => {
    for (const [layer, head] of [
      [0, 1],
      [1, 0],
    ]) {
      const looked = rows.map((_, row) => expectedSensitivity(layer, row, head));
      for (const side of SIDES) {
        const raw = rows.flatMap((_, row) => Array.from(sampledPositions(shape, row), t => looked[row][side][t]));
        const { attentionWeights } = samplesFromRecords(shape, records[layer], side, new Float64Array());
        const mean = raw.reduce((a, b) => a + b) / 60;
        raw.forEach((a, n) => {
          expect(attentionWeights[head * 60 + n]).toBeCloseTo(0.8 * Math.min(50, a / mean) + 0.2, 4);
        });
      }
    }
  });
});

it('the metric of keys is the second moment of page-relative queries; the metric of values weights heads by their attention', () => {
  const looked = [0, 1].map(kv => rows.map((_, row) => expectedSensitivity(0, row, kv)));
  const sum = (of: (each: (typeof looked)[0][0]) => number, kv: number) =>
    looked[kv].reduce((s, each) => s + of(each), 0);
  const largest = Math.max(...looked[0][0].metric);
  errorMetric(shape, records[0], 'key', attentionWeights[0].grams).forEach((m, i) => {
    expect(m / largest).toBeCloseTo(sum(({ metric }) => metric[i & 255], i >> 8) / largest, 4);
  });
  const shares = Float64Array.from({ length: 6 }, (_, h) => sum(each => each.shares[h % 3], h < 3 ? 0 : 1));
  const wanted = valueMetric(attentionWeights[0].grams, shares, shape);
  errorMetric(shape, records[0], 'value', attentionWeights[0].grams).forEach((m, i) => {
    expect(m / wanted[0]).toBeCloseTo(wanted[i] / wanted[0], 4);
  });
});

it('the output error is the squared change that errors of one cause, over the squared input', () => {
  const norms = seen.map(layers => {
    const width = layers[0].x.length / context;
    const norms = Array.from({ length: context }, (_, t) => {
      const input = layers[0].x.subarray(t * width, (t + 1) * width);
      return dot(input, input);
    });
    return norms.sort((a, b) => a - b)[25];
  });
  const norm = norms.reduce((a, b) => a + b);
  for (const head of [0, 1]) {
    const looked = rows.map((_, row) => expectedSensitivity(0, row, head));
    const diagonal = looked.reduce(
      (sum, { metric }) => sum + metric.filter((_, i) => i % 17 === 0).reduce((a, b) => a + b),
      0,
    );
    // No weight is above the limit here. The kernel does not multiply queries by the scale, 1/4, before it adds them up.
    expect((outputErrorPerLoss(shape, records[0], 'key')[head] * norm) / (diagonal / 16 / 16)).toBeCloseTo(1, 3);
    const sampled = looked.flatMap(({ value }, row) => Array.from(sampledPositions(shape, row), t => value[t]));
    const expected = (sampled.reduce((a, b) => a + b) * maxSamples(shape)) / 20;
    expect((outputErrorPerLoss(shape, records[0], 'value')[head] * norm) / expected).toBeCloseTo(1, 3);
  }
});

it('continues after an abort: finished rows are not run again', async () => {
  const stop = new AbortController();
  const again = await openCheckpoint(await mkdtemp(join(tmpdir(), 'kvasir-state-')));
  const workers = await createWorkers(0);
  const first = collect(engine, rows, {
    shape,
    attentionWeights,
    checkpoint: again,
    workers,
    signal: stop.signal,
    onProgress: () => stop.abort(),
  });
  expect(await first).toBe(false);
  expect([await again.has('row-0'), await again.has('row-2')]).toEqual([true, false]);
  const before = engine.device.allocatedBytes;
  expect(await collect(engine, rows, { shape, attentionWeights, checkpoint: again, workers })).toBe(true);
  expect(engine.device.allocatedBytes).toBe(before);
  for (const row of ['row-0', 'row-1', 'row-2']) expect(await again.read(row)).toEqual(await checkpoint.read(row));
});

it.each([0, 1, 2])(
  'a task that fails in row %i rejects with its error, and leaves no unhandled rejection',
  async failing => {
    const error = new DeviceError('a thread stopped');
    let tasks = 0;
    const workers: Workers = {
      threads: 2,
      // All later tasks fail too, as after a thread has stopped.
      run: async (_name, request) => {
        if (tasks++ >= 2 * failing) throw error;
        return observeLayer(shape, (request as { row: number }).row, (request as ObserveRequest).observed) as never;
      },
      async dispose() {},
    };
    const empty = await openCheckpoint(await mkdtemp(join(tmpdir(), 'kvasir-state-')));
    const before = engine.device.allocatedBytes;
    await expect(collect(engine, rows, { shape, attentionWeights, checkpoint: empty, workers })).rejects.toBe(error);
    expect(engine.device.allocatedBytes).toBe(before);
    expect(await empty.has(`row-${failing}`)).toBe(false);
  },
);

it('a task that fails in an aborted row leaves no unhandled rejection', async () => {
  const stop = new AbortController();
  const run = async () => {
    stop.abort();
    throw new DeviceError('a thread stopped');
  };
  const empty = await openCheckpoint(await mkdtemp(join(tmpdir(), 'kvasir-state-')));
  const workers: Workers = { threads: 2, run, async dispose() {} };
  const done = collect(engine, rows, { shape, attentionWeights, checkpoint: empty, workers, signal: stop.signal });
  await Promise.allSettled([done]);
  await new Promise(resolve => setTimeout(resolve, 10));
});
