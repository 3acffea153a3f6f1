/** The quality of a cache: how well its codecs fit the text, measured while pages were sealed. */
import type { Sequence } from '../cache/sequence.ts';
import { errorRatio } from '../plan/error-ratio.ts';
import type { Plan } from '../plan/plan.ts';
import type { Engine } from './engine.ts';

/** How well calibrated codecs fit the text in the cache. */
export interface Quality {
  /** Sealed pages that were measured. */
  pages: number;
  /** Their squared error relative to the calibration text: 1 on text like it. */
  ratio: number;
  /** The divergence that the profile predicts for text like its own, in nats per token. */
  expected?: number;
  /** An estimate of the divergence on this text, expected x ratio: a lower bound if the ratio is well above 1. */
  estimated?: number;
}

/** Above this ratio, calibrating with text like this would help. Measured: docs/calibration.md. */
export const UNFAMILIAR_RATIO = 1.25;

/** Reads the errors of the sealed pages. Undefined if there are none, or nothing to compare them with. */
export async function measureQuality(engine: Engine, sequence: Sequence, plan: Plan): Promise<Quality | undefined> {
  if (!plan.errorWeights) return undefined;
  const found = errorRatio(plan, await engine.exclusive(() => sequence.readErrors()));
  const { predicted } = plan;
  return found && { ...found, ...(predicted && { expected: predicted, estimated: predicted * found.ratio }) };
}

/** A warning if the text is unlike what the profile was learned from. */
export const unfamiliarNotice = ({ ratio }: Quality, { spec }: Plan): string | undefined =>
  ratio > UNFAMILIAR_RATIO
    ? `This text is unlike the text that ${spec} was calibrated on: the cache's error is ${ratio.toFixed(2)} times as large. ` +
      'To improve it, use the quality preset safe, or calibrate with text like this one in FILE: kvasir calibrate MODEL --text FILE'
    : undefined;
