/**
 * How much each layer's keys and values matter: the divergence of a row of text when one side of one layer alone is
 * read from codes. All the rest of the cache is f16, so layers below the coded one compute what they did before: they
 * are not run again, but begun at the coded layer from what came into it.
 */
import type { Side } from '../codec/codec.ts';
import { createCodec, type KvLearned } from '../codec/kv.ts';
import { formatSpec, parseSpec, windowOf } from '../codec/spec.ts';
import type { Engine } from '../engine/engine.ts';
import { planOf, planOfCodecs } from '../plan/plan.ts';
import { createScore, teacherForce } from './divergence.ts';
import { logSoftmax } from './vocabulary.ts';

const F16 = { base: 'f16', variants: [] };

export interface Probe {
  /** A codec of both sides; one of them is used. */
  spec: string;
  layer: number;
  side: Side;
  learned?: KvLearned;
}

/** Measures probes on one row, scored on its second half; undefined when the signal came first. */
export type Prober = (probe: Probe, signal?: AbortSignal) => Promise<number | undefined>;

/** Runs the row once in f16 and keeps what the probes are held against. */
export async function createProber(
  engine: Engine,
  row: readonly number[],
  { pageTokens, signal }: { pageTokens?: number; signal?: AbortSignal } = {},
): Promise<Prober | undefined> {
  const { config, rope, device } = engine;
  const { width } = config;
  const shape = { ...config, pageTokens, turn: rope.frequencies };
  const from = Math.floor(row.length / 2);
  const reference: Float32Array[] = [];
  const inputs = Array.from({ length: config.layers }, () => new Float32Array(row.length * width));
  const filled = new Array<number>(config.layers).fill(0);
  const exact = createCodec('f16', shape);
  const finished = await teacherForce(engine, planOf('f16', shape), row, from, {
    signal,
    onLogits(position, logits) {
      reference[position] = logSoftmax(logits);
    },
    async observe(layer, { rows, x }) {
      for (let r = 0; r < rows; r++) inputs[layer].set(await device.read(x, r), filled[layer]++ * width);
    },
  });
  if (!finished) return undefined;

  return async ({ spec, layer, side, learned }, signal) => {
    const parsed = parseSpec(spec);
    const pair = side === 'key' ? { key: parsed.key, value: F16 } : { key: F16, value: parsed.value };
    const codec = createCodec(formatSpec({ ...parsed, ...pair }), shape, learned);
    const codecs = Array.from({ length: config.layers }, (_, i) => (i === layer ? codec : exact));
    const plan = planOfCodecs(spec, windowOf(parsed), codecs);
    const score = createScore(row);
    const done = await teacherForce(engine, plan, row, from, {
      signal,
      onLogits: (position, logits) => score.add(position, logSoftmax(logits), reference[position]),
      resume: {
        layer,
        rows: ({ sequence: { length }, tokens }) =>
          inputs[layer].subarray(length * width, (length + tokens.length) * width),
      },
    });
    return done ? score.kld / score.tokens : undefined;
  };
}
