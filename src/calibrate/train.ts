/** Learns the codecs' parameters for every layer and side from the records of all rows: one small profile file each. */
import type { Side } from '../codec/codec.ts';
import { checkShape } from '../codec/kv.ts';
import type { Learned } from '../codec/learned.ts';
import { shapeOfLayer } from '../plan/plan.ts';
import { decodeProfile, encodeProfile, type ProfileContent } from '../plan/profile.ts';
import { statisticsOfLayer } from '../plan/statistics.ts';
import { readRecords, type StageOptions } from './collect.ts';
import type { CalibrationJob } from './job.ts';

interface TrainOptions extends CalibrationJob, StageOptions {
  /** The header of the profile files. */
  content: Omit<ProfileContent, 'learned'>;
}

/** Sensitivities are estimates: the error of the layer's output, which probes refine. */
export type Trained = Pick<ProfileContent, 'learned' | 'sensitivities'>;

/** Undefined if the signal aborted it. */
export async function train(options: TrainOptions): Promise<Trained | undefined> {
  const { codecShape, codecsHash, checkpoint, workers, signal, onProgress } = options;
  const { layers } = codecShape;
  const learned = Array.from({ length: layers }, () => ({ key: {} as Learned, value: {} as Learned }));
  const mead2 = learned.map(() => ({ key: 0, value: 0 }));
  const jobs = learned.flatMap((_, layer) => [{ layer, side: 'key' } as const, { layer, side: 'value' } as const]);
  let done = 0;
  let next = 0;
  const work = async () => {
    while (next < jobs.length && !signal?.aborted) {
      const { layer, side } = jobs[next++];
      const name = `learned-${codecsHash}-${layer}-${side}`;
      if (!(await checkpoint.has(name))) await checkpoint.write(name, await learnOne(options, layer, side));
      const part = await decodeProfile(await checkpoint.read(name), name);
      learned[layer][side] = part.learned[layer][side];
      mead2[layer][side] = part.sensitivities.mead2?.[layer][side] ?? 0;
      onProgress?.(++done);
    }
  };
  await Promise.all(Array.from({ length: workers.threads }, work));
  if (done < jobs.length) return undefined;
  const isEstimated = mead2.some(({ key, value }) => key + value > 0);
  return { learned, sensitivities: isEstimated ? { mead2 } : {} };
}

async function learnOne(
  { shape, codecShape, codecs, rows, attentionWeights, content, checkpoint, workers }: TrainOptions,
  layer: number,
  side: Side,
): Promise<Uint8Array> {
  const records = await readRecords(checkpoint, shape, rows.length, layer);
  const request = {
    shape: statisticsOfLayer(shape, codecShape, layer),
    records,
    side,
    codecs,
    codecShape: checkShape(shapeOfLayer(codecShape, layer)),
    grams: attentionWeights[layer].grams,
  };
  const result = await workers.run(
    'learn',
    request,
    records.map(({ buffer }) => buffer),
  );
  const onlyThis = <T>(value: T, other: T) =>
    Array.from({ length: codecShape.layers }, (_, i) => ({
      key: i === layer && side === 'key' ? value : other,
      value: i === layer && side === 'value' ? value : other,
    }));
  const { outputError } = result;
  const sensitivities: ProfileContent['sensitivities'] =
    outputError === undefined ? {} : { mead2: onlyThis(outputError, 0) };
  return encodeProfile({ ...content, learned: onlyThis<Learned>(result.learned, {}), sensitivities });
}
