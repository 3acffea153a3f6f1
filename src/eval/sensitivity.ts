/**
 * How much each layer's keys and values matter: the divergence of a row of text when one side of one layer alone is
 * read from codes, all else being f16.
 *
 * Two things make it affordable. Layers below the coded one compute what they did before, so the pass begins at the
 * coded layer from what came into it. And tokens before those that are judged are not run again either: their keys and
 * values are those of the f16 pass. What the coded layer does to theirs in higher layers is thereby left out, which
 * makes all divergences somewhat smaller; one run of a whole plan says by how much.
 */
import type { Side } from '../codec/codec.ts';
import { createCodec, type KvLearned } from '../codec/kv.ts';
import { formatSpec, parseSpec, windowOf } from '../codec/spec.ts';
import type { Engine } from '../engine/engine.ts';
import { type Chunk, restore, type Seen } from '../model/forward.ts';
import { type Plan, planOf, planOfCodecs } from '../plan/plan.ts';
import { createScore, forceRest, teacherForce } from './divergence.ts';
import { logSoftmax } from './vocabulary.ts';

const F16 = { base: 'f16', variants: [] };

export interface Probe {
  /** A codec of both sides; one of them is used. */
  spec: string;
  layer: number;
  side: Side;
  learned?: KvLearned;
  /** So many of the judged tokens will do; all of them unless given. */
  judged?: number;
}

/** Divergences on one row; undefined when the signal came first. */
export interface Prober {
  /** Of one side. */
  side(probe: Probe, signal?: AbortSignal): Promise<number | undefined>;
  /** Of a plan, all tokens run. */
  whole(plan: Plan, signal?: AbortSignal): Promise<number | undefined>;
}

export interface ProberOptions {
  /** The last tokens of the row are judged, so many: half of them unless given. */
  judged?: number;
  pageTokens?: number;
  signal?: AbortSignal;
}

/** Runs the row once in f16 and keeps what the probes begin with and are held against. */
export async function createProber(
  engine: Engine,
  row: readonly number[],
  options: ProberOptions = {},
): Promise<Prober | undefined> {
  const { config, rope, device, scratch } = engine;
  const { layers, width } = config;
  const shape = { ...config, pageTokens: options.pageTokens, turn: rope.frequencies };
  const from = row.length - (options.judged ?? Math.ceil(row.length / 2));
  const reference: Float32Array[] = [];
  const matrices = (tokens: number, cols: number) =>
    Array.from({ length: layers }, () => new Float32Array(tokens * cols));
  /** [layer][token before those that are judged], and what comes into each layer of those that are. */
  const [k, v] = [matrices(from, scratch.k.cols), matrices(from, scratch.v.cols)];
  const inputs = matrices(row.length - from, width);
  const done = new Array<number>(layers).fill(0);
  const finished = await teacherForce(engine, planOf('f16', shape), row, from, {
    signal: options.signal,
    onLogits(position, logits) {
      reference[position] = logSoftmax(logits);
    },
    async observe(layer, seen: Seen) {
      for (let r = 0; r < seen.rows; r++) {
        const token = done[layer]++;
        if (token >= from) inputs[layer].set(await device.read(seen.x, r), (token - from) * width);
        else {
          k[layer].set(await device.read(seen.k, r), token * seen.k.cols);
          v[layer].set(await device.read(seen.v, r), token * seen.v.cols);
        }
      }
    },
  });
  if (!finished) return undefined;

  const exact = createCodec('f16', shape);
  const judge = () => {
    const score = createScore(row);
    const onLogits = (position: number, logits: Float32Array) => {
      score.add(position, logSoftmax(logits), reference[position]);
    };
    return { onLogits, result: (finished: boolean) => (finished ? score.kld / score.tokens : undefined) };
  };
  return {
    async side({ spec, layer, side, learned, judged = row.length - from }, signal) {
      const parsed = parseSpec(spec);
      const pair = side === 'key' ? { key: parsed.key, value: F16 } : { key: F16, value: parsed.value };
      const codec = createCodec(formatSpec({ ...parsed, ...pair }), shape, learned);
      const codecs = Array.from({ length: layers }, (_, i) => (i === layer ? codec : exact));
      const { onLogits, result } = judge();
      const sequence = engine.openSequence(planOfCodecs(spec, windowOf(parsed), codecs), row.length);
      try {
        restore(device, scratch, sequence, layer, k, v);
        const rows = (length: number, count: number) =>
          inputs[layer].subarray((length - from) * width, (length - from + count) * width);
        const resume = { layer, rows: ({ sequence: { length }, tokens }: Chunk) => rows(length, tokens.length) };
        return result(await forceRest(engine, sequence, row.slice(0, from + judged), { signal, onLogits, resume }));
      } finally {
        sequence.dispose();
      }
    },
    async whole(plan, signal) {
      const { onLogits, result } = judge();
      return result(await teacherForce(engine, plan, row, from, { signal, onLogits }));
    },
  };
}
