/** The codecs that calibration learns for by default, and whether what they learn covers a spec. */
import { createCodec, type KvLearned, placeholderLearned } from '../codec/kv.ts';
import { ShapeError, UnsupportedError } from '../errors.ts';
import type { PlanShape } from './plan.ts';

/**
 * All that are learned in little time; `defaultCodecs` leaves out those that do not support a model's shape. Product
 * codebooks (vec, million) take longer than all others together.
 */
export const DEFAULT_CODECS = ['mead2', 'mead2u', 'tq4-c', 'oaken', 'tri12i4/f16'];

export const defaultCodecs = (shape: PlanShape): string[] => DEFAULT_CODECS.filter(spec => supportsShape(spec, shape));

export function supportsShape(spec: string, shape: PlanShape): boolean {
  try {
    createCodec(spec, shape, placeholderLearned(spec, shape));
    return true;
  } catch (error) {
    if (error instanceof ShapeError) return false;
    throw error;
  }
}

/** Whether calibration for these codecs learns everything that a spec needs. */
export function calibrationCovers(spec: string, codecs: readonly string[], shape: PlanShape): boolean {
  const all = codecs.map(codec => placeholderLearned(codec, shape));
  const key = Object.assign({}, ...all.map(({ key }) => key));
  const value = Object.assign({}, ...all.map(({ value }) => value));
  return learnedCovers({ key, value }, spec, shape);
}

/** Whether the learned arrays of a layer hold everything that a spec needs. */
export function learnedCovers(learned: KvLearned, spec: string, shape: PlanShape): boolean {
  try {
    createCodec(spec, shape, learned);
    return true;
  } catch (error) {
    if (error instanceof UnsupportedError) return false;
    throw error;
  }
}
