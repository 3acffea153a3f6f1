/** The codecs that calibration learns for by default, and whether what they learn covers a spec. */
import { createCodec, type KvLearned, needsProfile, placeholderLearned } from '../codec/kv.ts';
import { formatSide, formatSpec, parseSpec } from '../codec/spec.ts';
import { ShapeError, UnsupportedError } from '../util/errors.ts';
import type { PlanShape } from './plan.ts';

/**
 * All that are learned in little time; `defaultCodecs` leaves out those that do not support a model's shape. Product
 * codebooks (vec, million) take longer than all others together.
 */
export const DEFAULT_CODECS = ['mead2', 'mead2u', 'oaken', 'tri-i4/f16', 'tq35-v'];

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

/** What calibration for these codecs learns of a layer, untrained. */
export function placeholderForAll(codecs: readonly string[], shape: PlanShape): KvLearned {
  const all = codecs.map(codec => placeholderLearned(codec, shape));
  return {
    key: Object.assign({}, ...all.map(({ key }) => key)),
    value: Object.assign({}, ...all.map(({ value }) => value)),
  };
}

/**
 * What to calibrate for, so that learned arrays of a layer cover a spec: the spec without its window, or the one side that
 * is missing. Undefined if they cover it.
 */
export function missingCodecs(learned: KvLearned, spec: string, shape: PlanShape): string | undefined {
  const { key, value } = parseSpec(spec);
  const [keys, values] = [`${formatSide(key)}/f16`, `f16/${formatSide(value)}`];
  const [hasKeys, hasValues] = [keys, values].map(side => learnedCovers(learned, side, shape));
  if (hasKeys && hasValues) return undefined;
  if (hasKeys && needsProfile(keys)) return values;
  if (hasValues && needsProfile(values)) return keys;
  return formatSpec({ key, value, window: {} });
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
