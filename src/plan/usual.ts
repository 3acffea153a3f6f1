/** The codecs that calibration learns for unless it is told otherwise, and whether a spec is among what they learn. */
import { createCodec, type KvLearned, placeholder } from '../codec/kv.ts';
import { ShapeError, UnsupportedError } from '../errors.ts';
import type { PlanShape } from './plan.ts';

/** Those that the model's shape cannot have are left out. */
export const USUAL_CODECS = ['mead2', 'mead2u', 'tq4-c', 'vec-d4b8', 'million-d4b8', 'oaken', 'tri12i4/f16'];

export const usualCodecs = (shape: PlanShape): string[] => USUAL_CODECS.filter(spec => fits(spec, shape));

function fits(spec: string, shape: PlanShape): boolean {
  try {
    createCodec(spec, shape, placeholder(spec, shape));
    return true;
  } catch (error) {
    if (error instanceof ShapeError) return false;
    throw error;
  }
}

/** Whether calibration learns what a spec needs, if it learns for these codecs. */
export function learnsFor(spec: string, codecs: readonly string[], shape: PlanShape): boolean {
  const all = codecs.map(codec => placeholder(codec, shape));
  const key = Object.assign({}, ...all.map(({ key }) => key));
  const value = Object.assign({}, ...all.map(({ value }) => value));
  return knows({ key, value }, spec, shape);
}

/** Whether what was learned of a layer has all that a spec needs. */
export function knows(learned: KvLearned, spec: string, shape: PlanShape): boolean {
  try {
    createCodec(spec, shape, learned);
    return true;
  } catch (error) {
    if (error instanceof UnsupportedError) return false;
    throw error;
  }
}
