/** The codecs that calibration learns for by default, and whether what they learn covers a spec. */
import { createCodec, type KvLearned, needsProfile, placeholderLearned } from '../codec/kv.ts';
import { F16, formatSpec, type KvSpec, parseSpec } from '../codec/spec.ts';
import { type KvasirError, ShapeError, UnsupportedError } from '../util/errors.ts';
import { type PlanShape, shapeOfLayer } from './plan.ts';

/**
 * All that are learned in little time; `defaultCodecs` leaves out those that do not support a model's shape. Product
 * codebooks (vec, million) take longer than all others together.
 */
export const DEFAULT_CODECS = ['mead2', 'mead2u', 'oaken', 'tri-i4/f16', 'tq35-v'];

export const defaultCodecs = (shape: PlanShape): KvSpec[] =>
  DEFAULT_CODECS.map(parseSpec).filter(spec => supportsShape(spec, shape));

export const supportsShape = (spec: KvSpec, shape: PlanShape): boolean =>
  succeeds(() => createCodec(spec, shape, placeholderLearned(spec, shape)), ShapeError);

/** What calibration for these codecs learns of the first layer, untrained. */
export function placeholderForAll(codecs: readonly KvSpec[], shape: PlanShape): KvLearned {
  const all = codecs.map(codec => placeholderLearned(codec, shapeOfLayer(shape, 0)));
  return {
    key: Object.assign({}, ...all.map(({ key }) => key)),
    value: Object.assign({}, ...all.map(({ value }) => value)),
  };
}

/**
 * What to calibrate for, so that learned arrays of the first layer cover a spec: the spec without its window, or the one side that
 * is missing. Undefined if they cover it.
 */
export function missingCodecs(learned: KvLearned, { key, value }: KvSpec, shape: PlanShape): string | undefined {
  const [keys, values] = [
    { ...F16, key },
    { ...F16, value },
  ];
  const [hasKeys, hasValues] = [keys, values].map(side => learnedCovers(learned, side, shape));
  if (hasKeys && hasValues) return undefined;
  if (hasKeys && needsProfile(keys)) return formatSpec(values);
  if (hasValues && needsProfile(values)) return formatSpec(keys);
  return formatSpec({ ...F16, key, value });
}

/** Whether the learned arrays of the first layer hold everything that a spec needs. */
export const learnedCovers = (learned: KvLearned, spec: KvSpec, shape: PlanShape): boolean =>
  succeeds(() => createCodec(spec, shapeOfLayer(shape, 0), learned), UnsupportedError);

function succeeds(create: () => void, Refusal: typeof KvasirError): boolean {
  try {
    create();
    return true;
  } catch (error) {
    if (error instanceof Refusal) return false;
    throw error;
  }
}
