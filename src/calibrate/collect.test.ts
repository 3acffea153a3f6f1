/** Statistics of a tiny model against the same written down as the definition says it, in f64. */
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { writeGguf } from '../../test/gguf-writer.ts';
import { tinyModel } from '../../test/tiny-model.ts';
import { turnPairs } from '../codec/domain.ts';
import { type Engine, loadEngine, openModelFile } from '../engine/engine.ts';
import { step } from '../engine/step.ts';
import { roundF16 } from '../kernel/float.ts';
import { planOf } from '../plan/plan.ts';
import {
  type LayerRecord,
  queryMoment,
  recordOf,
  type StatisticsShape,
  sampledPositions,
  sampledQueries,
  samplesFrom,
} from '../plan/statistics.ts';
import { collect, readRecords } from './collect.ts';
import { openState, type State } from './state.ts';
import { createWorkers } from './workers.ts';

const context = 50;
const rows = [1, 2, 3].map(salt => Array.from({ length: context }, (_, i) => (i * i * 7 + 31 * i * salt) % 256));
type Vectors = { q: Float32Array; k: Float32Array; v: Float32Array };

let engine: Engine;
let shape: StatisticsShape;
let state: State;
const records: LayerRecord[][] = [];
/** [row][layer]. */
const seen: Vectors[][] = [];

beforeAll(async () => {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ heads: 6, kvHeads: 2, headDim: 16 }))]));
  engine = await loadEngine(file, { plan: planOf('f16', file.config), context }, { device: 'js', prefillChunk: 20 });
  const { heads, kvHeads, headDim, attentionScale: scale } = engine.config;
  shape = { heads, kvHeads, headDim, scale, turn: engine.rope.frequencies, context, samples: 20, seed: 5 };
  state = await openState(await mkdtemp(join(tmpdir(), 'kvasir-state-')));
  expect(await collect(engine, rows, { shape, state, workers: await createWorkers(0) })).toBe(true);
  for (const layer of [0, 1]) {
    const bytes = await readRecords(state, shape, rows.length, layer);
    records.push(bytes.map(each => recordOf(shape, each)));
  }
  for (const tokens of rows) {
    const layers: Vectors[] = [];
    await step(
      engine,
      [{ sequence: engine.openSequence(planOf('f16', engine.config), context), tokens, logits: 'none' }],
      {
        async observe(layer, { rows, q, k, v }) {
          const more = async (before: Float32Array | undefined, tensor: typeof q) => {
            const batch = await Promise.all(Array.from({ length: rows }, (_, row) => engine.device.read(tensor, row)));
            return Float32Array.from([...(before ?? []), ...batch.flatMap(row => [...row])]);
          };
          const { q: qs, k: ks, v: vs } = layers[layer] ?? {};
          layers[layer] = { q: await more(qs, q), k: await more(ks, k), v: await more(vs, v) };
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

function attentionOf({ q, k }: Vectors, row: number, kv: number, position: number): number {
  const later = sampledQueries(shape, row).filter(t => t >= position);
  const squares = later.flatMap(t =>
    [0, 1, 2].map(g => {
      const query = vectorOf(q, 6, t, 3 * kv + g);
      const weights = Array.from({ length: t + 1 }, (_, n) => Math.exp(dot(query, vectorOf(k, 2, n, kv)) / 4));
      return (weights[position] / weights.reduce((a, b) => a + b)) ** 2;
    }),
  );
  return squares.reduce((a, b) => a + b) / squares.length;
}

describe('samples', () => {
  it('are spread over the row, past the sinks, the same ones again for the same seed', () => {
    const positions = sampledPositions(shape, 1);
    expect(positions).toEqual(sampledPositions(shape, 1));
    expect(positions).not.toEqual(sampledPositions(shape, 2));
    expect(new Set(positions).size).toBe(20);
    expect([positions[0] >= 4, positions[0] < 7, positions[19] >= 47, positions[19] < 50]).not.toContain(false);
    expect(sampledPositions({ ...shape, samples: context - 4 }, 0)).toEqual(
      Int32Array.from({ length: context - 4 }, (_, i) => i + 4),
    );
  });

  it.each(['key', 'value'] as const)('hold each %s as f16 keeps it, where it was', side => {
    const samples = samplesFrom(shape, records[1], side, new Float64Array());
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
      ...x.flatMap(each => Array.from({ length: 46 }, (_, t) => Math.abs(each[(t + 4) * 32 + 17]))),
    );
    expect(samples.maxima[17]).toBe(largest);
  });

  it('are weighed by the squared attention of this and later queries', () => {
    for (const layer of [0, 1]) {
      const raw = [0, 1].map(head =>
        seen.flatMap((layers, row) =>
          Array.from(sampledPositions(shape, row), t => attentionOf(layers[layer], row, head, t)),
        ),
      );
      const { attention } = samplesFrom(shape, records[layer], 'key', new Float64Array());
      for (const head of [0, 1]) {
        const mean = raw[head].reduce((a, b) => a + b) / 60;
        raw[head].forEach((a, n) => {
          expect(attention[head * 60 + n]).toBeCloseTo(0.8 * Math.min(50, a / mean) + 0.2, 4);
        });
      }
    }
  });
});

it('the moment of the queries is theirs before RoPE, summed over the group', () => {
  const moment = queryMoment(records[0]);
  const wanted = new Float64Array(2 * 256);
  seen.forEach((layers, row) => {
    const queries = sampledQueries(shape, row);
    for (const t of queries) {
      for (let head = 0; head < 6; head++) {
        const x = Float64Array.from(vectorOf(layers[0].q, 6, t, head));
        turnPairs(x, shape.turn, -t);
        x.forEach((a, i) => {
          x.forEach((b, j) => {
            wanted[Math.floor(head / 3) * 256 + i * 16 + j] += (a * b) / queries.length / rows.length;
          });
        });
      }
    }
  });
  moment.forEach((m, i) => {
    expect(m).toBeCloseTo(wanted[i], 4);
  });
});

it('goes on where it was stopped: rows that are there are not read again', async () => {
  const stop = new AbortController();
  const again = await openState(await mkdtemp(join(tmpdir(), 'kvasir-state-')));
  const workers = await createWorkers(0);
  const first = collect(engine, rows, {
    shape,
    state: again,
    workers,
    signal: stop.signal,
    onProgress: () => stop.abort(),
  });
  expect(await first).toBe(false);
  expect([await again.has('row-0'), await again.has('row-2')]).toEqual([true, false]);
  const before = engine.device.bytes;
  expect(await collect(engine, rows, { shape, state: again, workers })).toBe(true);
  expect(engine.device.bytes).toBe(before);
  for (const row of ['row-0', 'row-1', 'row-2']) expect(await again.read(row)).toEqual(await state.read(row));
});
