/**
 * How much each layer's keys and values matter: the divergence of a row of text when one side of one layer alone is
 * read from codes, all else being f16.
 *
 * What cannot change is not run again. Layers below the coded one compute what they did before, so the pass begins at the
 * coded layer from what came into it. Tokens of the first page read no codes: their keys and values are those of the f16
 * pass. All others must run, judged or not: what they hand on to higher layers matters, and more so the lower the coded
 * layer is.
 */
import type { Side } from '../codec/codec.ts';
import { checkShape, createCodec, type KvLearned } from '../codec/kv.ts';
import { formatSpec, parseSpec, windowOf } from '../codec/spec.ts';
import type { Engine } from '../engine/engine.ts';
import { type Chunk, restore, type Seen } from '../model/forward.ts';
import { planOf, planOfCodecs } from '../plan/plan.ts';
import { createScore, force, teacherForce } from './divergence.ts';
import { logSoftmax } from './vocabulary.ts';

const F16 = { base: 'f16', variants: [] };

export interface Probe {
  /** A codec of both sides; one of them is used. */
  spec: string;
  layer: number;
  side: Side;
  learned?: KvLearned;
}

/** The divergence on a row with one side coded; undefined when the signal came first. */
export type Prober = (probe: Probe, signal?: AbortSignal) => Promise<number | undefined>;

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
  const start = Math.min(from, checkShape(shape).pageTokens);
  const reference: Float32Array[] = [];
  const matrices = (tokens: number, cols: number) =>
    Array.from({ length: layers }, () => new Float32Array(tokens * cols));
  /** [layer][token of the first page], and what comes into each layer of all others. */
  const [k, v] = [matrices(start, scratch.k.cols), matrices(start, scratch.v.cols)];
  const inputs = matrices(row.length - start, width);
  const done = new Array<number>(layers).fill(0);
  const finished = await teacherForce(engine, planOf('f16', shape), row, from, {
    signal: options.signal,
    onLogits(position, logits) {
      reference[position] = logSoftmax(logits);
    },
    async observe(layer, seen: Seen) {
      for (let r = 0; r < seen.rows; r++) {
        const token = done[layer]++;
        if (token >= start) inputs[layer].set(await device.read(seen.x, r), (token - start) * width);
        else {
          k[layer].set(await device.read(seen.k, r), token * seen.k.cols);
          v[layer].set(await device.read(seen.v, r), token * seen.v.cols);
        }
      }
    },
  });
  if (!finished) return undefined;

  const exact = createCodec('f16', shape);
  return async ({ spec, layer, side, learned }, signal) => {
    const parsed = parseSpec(spec);
    const pair = side === 'key' ? { key: parsed.key, value: F16 } : { key: F16, value: parsed.value };
    const codec = createCodec(formatSpec({ ...parsed, ...pair }), shape, learned);
    const codecs = Array.from({ length: layers }, (_, i) => (i === layer ? codec : exact));
    const score = createScore(row);
    const onLogits = (position: number, logits: Float32Array) => {
      score.add(position, logSoftmax(logits), reference[position]);
    };
    const sequence = engine.openSequence(planOfCodecs(spec, windowOf(parsed), codecs), row.length);
    try {
      await restore(device, scratch, sequence, layer, k, v);
      const rows = (length: number, count: number) =>
        inputs[layer].subarray((length - start) * width, (length - start + count) * width);
      const resume = { layer, rows: ({ sequence: { length }, tokens }: Chunk) => rows(length, tokens.length) };
      const finished = await force(engine, sequence, row, from, { signal, onLogits, resume });
      return finished ? score.kld / score.tokens : undefined;
    } finally {
      sequence.dispose();
    }
  };
}
