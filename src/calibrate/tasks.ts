/** What calibration computes away from the device: plain functions of data that can be sent to a thread. */
import type { Shape, Side } from '../codec/codec.ts';
import type { Family } from '../codec/family.ts';
import { learnSide } from '../codec/kv.ts';
import type { Learned } from '../codec/learned.ts';
import { familyOf, parseSpec } from '../codec/spec.ts';
import { InputError } from '../errors.ts';
import {
  metricOf,
  type Observed,
  observeLayer,
  recordOf,
  type StatisticsShape,
  samplesFrom,
} from '../plan/statistics.ts';

export interface ObserveRequest {
  shape: StatisticsShape;
  row: number;
  observed: Observed;
}

export interface LearnRequest {
  shape: StatisticsShape;
  /** One layer's, of all rows. */
  records: Uint8Array<ArrayBuffer>[];
  side: Side;
  codecs: readonly string[];
  codecShape: Shape;
  /** The layer's, see metric.ts. */
  grams: Float32Array;
}

export const tasks = {
  observe: ({ shape, row, observed }: ObserveRequest): Uint8Array<ArrayBuffer> => observeLayer(shape, row, observed),

  learn({ shape, records: bytes, side, codecs, codecShape, grams }: LearnRequest): Learned {
    const records = bytes.map(each => recordOf(shape, each));
    const samples = samplesFrom(shape, records, side, metricOf(shape, records, side, grams));
    const learned: Record<string, Float32Array> = {};
    const done = new Set<Family>();
    for (const spec of codecs) {
      const own = parseSpec(spec)[side];
      const { family } = familyOf(own);
      if (family.learnsAlike && done.has(family)) continue;
      done.add(family);
      for (const [name, array] of Object.entries(learnSide(own, side, codecShape, samples))) {
        if (!array) continue;
        if (learned[name] && !same(learned[name], array))
          throw new InputError(`${spec} and a codec before it learn "${name}", each its own. Calibrate them apart.`);
        learned[name] = array;
      }
    }
    return learned;
  },
};

export type Tasks = typeof tasks;

const same = (a: Float32Array, b: Float32Array) => a.length === b.length && a.every((x, i) => x === b[i]);
