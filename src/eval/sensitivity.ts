/**
 * Sensitivity of a layer's keys or values, or of a few layers': the KL divergence on a row of text if only that side of
 * these layers is quantized and all else is f16.
 *
 * Only what can change is computed. Layers below the quantized one do not change, so a pass starts at that layer from its
 * stored f16 input. Tokens of the first page read no codes, so their keys and values are taken from the f16 pass. All other
 * tokens are run, scored or not, since their keys and values in higher layers change.
 */
import type { Side } from '../codec/codec.ts';
import { checkShape, createCodec, type KvLearned } from '../codec/kv.ts';
import { F16, formatSpec, type KvSpec, windowOf } from '../codec/spec.ts';
import { type Engine, planShape } from '../engine/engine.ts';
import { logSoftmax } from '../engine/log-probs.ts';
import type { Chunk } from '../model/batch.ts';
import { type LayerActivations, restoreKeysAndValues } from '../model/forward.ts';
import { createPlan, createPlanFromCodecs, shapeOfLayer } from '../plan/plan.ts';
import { createScore, teacherForce, teacherForceSequence } from './divergence.ts';

export interface Probe {
  /** Only the given side of the codec is used. */
  spec: KvSpec;
  /** The lowest layer. */
  layer: number;
  /** Number of layers. Default: 1. */
  layers?: number;
  side: Side;
  /** [layer], of all layers of the model. */
  learned?: readonly KvLearned[];
}

/** The divergence on a row with one side quantized, in nats per token; undefined if the signal aborted it. */
export type SensitivityProber = (probe: Probe, signal?: AbortSignal) => Promise<number | undefined>;

export interface ProberOptions {
  /** Number of tokens at the end of the row that are scored. Default: half of the row. */
  scored?: number;
  pageTokens?: number;
  signal?: AbortSignal;
}

/** Runs the row once in f16, and stores the activations that probes start from and the log probabilities to compare with. */
export async function createProber(
  engine: Engine,
  row: readonly number[],
  options: ProberOptions = {},
): Promise<SensitivityProber | undefined> {
  const { config, device, scratch } = engine;
  const { layers, width } = config;
  const shape = planShape(engine, options.pageTokens);
  const from = row.length - (options.scored ?? Math.ceil(row.length / 2));
  const start = Math.min(from, checkShape(shape).pageTokens);
  const reference: Float32Array[] = [];
  const matrices = (tokens: number, cols: number) =>
    Array.from({ length: layers }, () => new Float32Array(tokens * cols));
  /** [layer]: keys and values of the first page, and the layer's input of all other tokens. */
  const [k, v] = [matrices(start, scratch.k.cols), matrices(start, scratch.v.cols)];
  const inputs = matrices(row.length - start, width);
  const done = new Array<number>(layers).fill(0);
  const finished = await teacherForce(engine, createPlan(F16, shape), row, from, {
    signal: options.signal,
    onLogits(position, logits) {
      reference[position] = logSoftmax(logits);
    },
    async observe(layer, seen: LayerActivations) {
      const first = done[layer];
      done[layer] += seen.rows;
      const inFirstPage = Math.min(seen.rows, Math.max(0, start - first));
      const after = seen.rows - inFirstPage;
      if (inFirstPage > 0) {
        k[layer].set(await device.readRows(seen.k, 0, inFirstPage), first * seen.k.cols);
        v[layer].set(await device.readRows(seen.v, 0, inFirstPage), first * seen.v.cols);
      }
      if (after > 0)
        inputs[layer].set(await device.readRows(seen.x, inFirstPage, after), (first + inFirstPage - start) * width);
    },
  });
  if (!finished) return undefined;

  const exact = createCodec(F16, shape);
  return async ({ spec, layer, layers: count = 1, side, learned }, signal) => {
    const sideSpec = { ...F16, window: spec.window, [side]: spec[side] };
    const codecs = Array.from({ length: layers }, (_, i) =>
      i >= layer && i < layer + count ? createCodec(sideSpec, shapeOfLayer(shape, i), learned?.[i]) : exact,
    );
    const score = createScore(row);
    const onLogits = (position: number, logits: Float32Array) => {
      score.add(position, logSoftmax(logits), reference[position]);
    };
    const sequence = engine.openSequence(
      createPlanFromCodecs(formatSpec(spec), windowOf(spec), codecs, config),
      row.length,
    );
    try {
      await restoreKeysAndValues(device, scratch, sequence, layer, k, v);
      const rows = (length: number, count: number) =>
        inputs[layer].subarray((length - start) * width, (length - start + count) * width);
      const resume = { layer, rows: ({ sequence: { length }, tokens }: Chunk) => rows(length, tokens.length) };
      const finished = await teacherForceSequence(engine, sequence, row, from, { signal, onLogits, resume });
      return finished ? score.kld / score.tokens : undefined;
    } finally {
      sequence.dispose();
    }
  };
}
