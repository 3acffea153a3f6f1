/** The CPU work of calibration: pure functions of data that can be sent to a worker thread. */
import type { Shape, Side } from '../codec/codec.ts';
import type { Family } from '../codec/family.ts';
import { learnSide } from '../codec/kv.ts';
import type { Learned } from '../codec/learned.ts';
import { familyOf, formatSpec, type KvSpec } from '../codec/spec.ts';
import { lossOfMead2 } from '../plan/allocate.ts';
import {
  errorMetric,
  type LayerObservation,
  type LayerRecord,
  observeLayer,
  outputErrorPerLoss,
  type StatisticsShape,
  samplesFromRecords,
  viewRecord,
} from '../plan/statistics.ts';
import { InputError } from '../util/errors.ts';

export interface ObserveRequest {
  shape: StatisticsShape;
  row: number;
  observed: LayerObservation;
}

export interface LearnRequest {
  shape: StatisticsShape;
  /** The records of one layer, one per row. */
  records: Uint8Array<ArrayBuffer>[];
  side: Side;
  codecs: readonly KvSpec[];
  codecShape: Shape;
  /** The Gram matrices of the layer, see metric.ts. */
  grams: Float32Array;
}

export interface LearnResult {
  learned: Learned;
  /** If mead was learned: the squared change of the layer's output with this side in mead2, relative to its input. */
  outputError?: number;
}

export const tasks = {
  observe: ({ shape, row, observed }: ObserveRequest): Uint8Array<ArrayBuffer> => observeLayer(shape, row, observed),

  learn({ shape, records: bytes, side, codecs, codecShape, grams }: LearnRequest): LearnResult {
    const records = bytes.map(each => viewRecord(shape, each));
    const samples = samplesFromRecords(shape, records, side, errorMetric(shape, records, side, grams));
    const learned: Record<string, Float32Array> = {};
    const done = new Set<Family>();
    for (const spec of codecs) {
      const { family } = familyOf(spec[side]);
      if (family.sharesLearned && done.has(family)) continue;
      done.add(family);
      for (const [name, array] of Object.entries(learnSide(spec[side], side, codecShape, samples))) {
        if (!array) continue;
        if (learned[name] && !same(learned[name], array))
          throw new InputError(
            `${formatSpec(spec)} and an earlier codec learn different "${name}". Calibrate them separately.`,
          );
        learned[name] = array;
      }
    }
    const loss = learned['mead.loss'];
    return { learned, outputError: loss && estimateOutputError(shape, records, side, loss) };
  },
};

function estimateOutputError(
  shape: StatisticsShape,
  records: readonly LayerRecord[],
  side: Side,
  loss: Float32Array,
): number {
  const remaining = lossOfMead2(loss);
  const perLoss = outputErrorPerLoss(shape, records, side);
  const quadsPerHead = remaining.length / shape.kvHeads;
  return remaining.reduce((sum, quad, i) => sum + perLoss[Math.floor(i / quadsPerHead)] * quad, 0);
}

export type Tasks = typeof tasks;

const same = (a: Float32Array, b: Float32Array) => a.length === b.length && a.every((x, i) => x === b[i]);
