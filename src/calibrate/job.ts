/** The input of a calibration: rows of text, shapes, and the checkpoint on disk. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { checkShape } from '../codec/kv.ts';
import { formatSpec, type KvSpec, parseSpec } from '../codec/spec.ts';
import { type ModelFile, planShape } from '../engine/engine.ts';
import { type FingerprintOptions, modelFingerprint } from '../engine/model-fingerprint.ts';
import { CALIBRATION_SAMPLES, defaultCalibrationTokens } from '../engine/profile.ts';
import { type DeviceName, isGpu } from '../kernel/open.ts';
import { readTensorAsFloat32, requireTensor } from '../model/gguf.ts';
import type { AttentionWeights } from '../plan/attention-sensitivity.ts';
import { defaultCodecs } from '../plan/default-codecs.ts';
import { outputGrams } from '../plan/metric.ts';
import type { PlanShape } from '../plan/plan.ts';
import { kvasirCacheDir } from '../plan/profile-store.ts';
import { maxSamples, type StatisticsShape } from '../plan/statistics.ts';
import { InputError, optionError } from '../util/errors.ts';
import { packageVersion } from '../util/version.ts';
import { readBuiltInText } from './built-in-text.ts';
import { type Checkpoint, openCheckpoint } from './checkpoint.ts';
import { type CalibrationRows, createRows } from './rows.ts';

/** A text to calibrate on. */
export interface CalibrationText {
  /** Named in the profile, such as a file name. */
  name: string;
  text: string;
}

/** Which text a model is calibrated on, and for which codecs. */
export interface CalibrationDataOptions {
  /** Texts to calibrate on, in addition to the built-in text. */
  texts?: readonly (string | CalibrationText)[];
  /** Calibrate on `texts` alone. Default: false. */
  onlyTexts?: boolean;
  /** Parse control tokens in the texts (`<|im_start|>`). Default: false. */
  parseSpecialTokens?: boolean;
  /**
   * Tokens to calibrate on; at most half of them from `texts`. Default: 65536 on a GPU; on the CPU fewer for larger models,
   * down to 6144; and up to as many from `texts`.
   */
  tokens?: number;
  /**
   * Tokens per row: the text is split into rows. Default: 1024, or the model's context if that is shorter. A model with one
   * RoPE for short contexts and one for long ones is read with that of this context; by default, of the context that it is
   * loaded with.
   */
  context?: number;
  /** Keys and values kept per layer. Default: 12288, or what the rows have. */
  samples?: number;
  /** Seed of the samples. Default: 0. */
  seed?: number;
  /**
   * The codec specs to learn for; what the model's profile has learned for other codecs is kept. Default: a new profile
   * for every codec that is learned quickly and supports the model.
   */
  codecs?: readonly string[];
}

export interface CalibrationJob extends CalibrationRows {
  fingerprint: string;
  checkpoint: Checkpoint;
  context: number;
  seed: number;
  /** sha256 of the token ids. */
  text: string;
  shape: StatisticsShape;
  codecs: readonly KvSpec[];
  /** The codecs whose sensitivities are measured. */
  probedCodecs: readonly string[];
  /** Part of file names in the checkpoint, so that other codecs do not overwrite them. */
  codecsHash: string;
  codecShape: PlanShape;
  /** [layer]. */
  attentionWeights: AttentionWeights[];
}

/** Given as a codec, it asks for the sensitivities of TurboQuant. */
const TURBO_SPEC = 'tq4';
/** Parts of the built-in text in few rows: 64 tokens of 6144. Longer parts are fewer topics, and worse. */
const MIN_PARTS = 96;
/** Queries whose attention is measured, of all rows together. Little text is used more thoroughly than much. */
const QUERIES = 4096;
const MIN_QUERY_STEP = 4;
const MAX_QUERY_STEP = 16;

/** The options that decide what is read, and where. */
type JobOptions = CalibrationDataOptions & FingerprintOptions & { device?: DeviceName };

export async function prepareJob(file: ModelFile, options: JobOptions): Promise<CalibrationJob> {
  const { config, rope } = file;
  const { seed = 0 } = options;
  const context = options.context ?? Math.min(1024, config.context);
  if (context < 16) throw optionError('context', `is ${context}; it must be at least 16 tokens.`);
  if (file.paths.length === 0)
    throw new InputError('Only a model on disk can be calibrated. Give its path or hub name.');
  const fingerprint = await modelFingerprint(file, options);
  const chosen = await chooseRows(file, options, context);
  const { rows } = chosen;
  const { heads, kvHeads, headDim, layers, attentionScale: scale, attentionSoftcap: softcap } = config;
  const codecShape = planShape(file);
  const { pageTokens } = checkShape(codecShape);
  const samples = options.samples ?? CALIBRATION_SAMPLES;
  const perRow = Math.min(maxSamples({ context, pageTokens }), Math.ceil(samples / rows.length));
  const attention = { heads, kvHeads, headDim, scale, softcap, ropeFrequencies: rope.frequencies, context, pageTokens };
  const steps = Math.round((rows.length * context) / QUERIES);
  const queryStep = Math.min(MAX_QUERY_STEP, Math.max(MIN_QUERY_STEP, steps));
  const shape = { ...attention, samples: perRow, queryStep, seed };
  const codecs = new Map(
    (options.codecs?.map(parseSpec) ?? defaultCodecs(codecShape)).map(spec => [formatSpec(spec), spec]),
  );
  const hasMead = codecs.has('mead2');
  // Plans of TurboQuant are only of use where there is no mead.
  const probesTurbo = !hasMead || codecs.has(TURBO_SPEC);
  const probedCodecs = [...(hasMead ? ['mead2'] : []), ...(probesTurbo ? [TURBO_SPEC] : [])];
  const attentionWeights: AttentionWeights[] = [];
  for (let layer = 0; layer < layers; layer++) {
    options.signal?.throwIfAborted();
    attentionWeights.push(await readAttentionWeights(file, layer));
  }
  const text = sha256([...rows, ...chosen.heldOut].join('\n'));
  const key = sha256(
    JSON.stringify([packageVersion, fingerprint, [...rope.frequencies], text, context, perRow, seed]),
  ).slice(0, 16);
  const codecsHash = sha256([...codecs.keys()].join()).slice(0, 8);
  const checkpoint = await openCheckpoint(join(await kvasirCacheDir(), 'calibrate', key));
  return {
    ...chosen,
    ...{ fingerprint, checkpoint, context, seed, text },
    ...{ shape, codecs: [...codecs.values()], probedCodecs, codecsHash, codecShape, attentionWeights },
  };
}

async function readAttentionWeights({ gguf, config }: ModelFile, layer: number): Promise<AttentionWeights> {
  const read = (name: string) => readTensorAsFloat32(gguf, requireTensor(gguf, `blk.${layer}.${name}.weight`));
  const normWeights = config.norms === 'inputs' ? undefined : await read('post_attention_norm');
  return {
    grams: outputGrams(await read('attn_output'), config, normWeights),
    sinkLogits: config.sinkLogits ? await read('attn_sinks') : undefined,
    outputNorm: normWeights?.reduce((sum, weight) => sum + weight ** 2, 0),
  };
}

async function chooseRows(file: ModelFile, options: JobOptions, context: number): Promise<CalibrationRows> {
  const { texts = [], onlyTexts, parseSpecialTokens, tokens } = options;
  const { tokenizer } = file;
  if (onlyTexts && texts.length === 0) throw optionError('onlyTexts', 'is set, but no text was given.');
  const given = texts.map((text, i) => {
    const named = typeof text === 'string' ? { name: `text ${i + 1}`, text } : text;
    return { name: named.name, ids: tokenizer.encode(named.text, { parseSpecialTokens }) };
  });
  const builtIn = onlyTexts ? [] : await readBuiltInText(file);
  const bos = tokenizer.addBos ? tokenizer.bos : undefined;
  const defaultTokens = defaultCalibrationTokens(file, await isGpu(options.device));
  return createRows(builtIn, given, { context, bos, tokens, defaultTokens, minParts: MIN_PARTS });
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
