/** The input of a calibration: rows of text, shapes, and the checkpoint on disk. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { checkShape } from '../codec/kv.ts';
import { parseSpec } from '../codec/spec.ts';
import type { ModelFile } from '../engine/engine.ts';
import { modelFingerprint } from '../engine/profile.ts';
import { InputError } from '../errors.ts';
import { readTensorAsFloat32, requireTensor } from '../model/gguf.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { defaultCodecs } from '../plan/default-codecs.ts';
import { outputGrams } from '../plan/metric.ts';
import type { PlanShape } from '../plan/plan.ts';
import { kvasirCacheDir } from '../plan/profile-store.ts';
import { maxSamples, type StatisticsShape } from '../plan/statistics.ts';
import { packageVersion } from '../version.ts';
import { type Checkpoint, openCheckpoint } from './checkpoint.ts';

/** Which text a model is calibrated on, and for which codecs. */
export interface CalibrationDataOptions {
  /** Texts to calibrate on. Default: the model generates the text. */
  texts?: readonly string[];
  /** With `texts`: the model generates half of the text. Default: false. */
  self?: boolean;
  /** Parse control tokens in the texts (`<|im_start|>`). Default: false. */
  parseSpecialTokens?: boolean;
  /** Tokens to calibrate on. Default: 65536. */
  tokens?: number;
  /** Tokens per row: the text is split into rows. Default: 2048, or the model's context if that is shorter. */
  context?: number;
  /** Keys and values kept per layer. Default: 16384. */
  samples?: number;
  /** Seed of the samples and the generated text. Default: 0. */
  seed?: number;
  /** The codec specs to learn for. Default: every codec that needs calibration and supports the model. */
  codecs?: readonly string[];
}

export interface CalibrationJob {
  fingerprint: string;
  checkpoint: Checkpoint;
  context: number;
  seed: number;
  /** Rows to calibrate on; one more is for measuring sensitivities. */
  rows: number;
  /** Number of rows that the model generates. They come first. */
  selfRows: number;
  /** Token ids of the rows from given texts. */
  textRows: number[][];
  /** sha256 of the given token ids, `self`, or both joined by a plus. */
  text: string;
  shape: StatisticsShape;
  codecs: readonly string[];
  /** Part of file names in the checkpoint, so that other codecs do not overwrite them. */
  codecsHash: string;
  codecShape: PlanShape;
  /** [layer], see metric.ts. */
  grams: Float32Array[];
}

/** Always learned: the keys' mean costs nothing, and the sensitivity probe needs it. */
const CENTERED_SPEC = 'tq4-c';

export async function prepareJob(file: ModelFile, options: CalibrationDataOptions): Promise<CalibrationJob> {
  const { config, rope, tokenizer } = file;
  const { tokens = 65536, samples = 16384, seed = 0 } = options;
  const context = options.context ?? Math.min(2048, config.context);
  if (context < 16) throw new InputError(`context is ${context}; it must be at least 16 tokens.`);
  const fingerprint = await modelFingerprint(file);
  if (!fingerprint) throw new InputError('Only a model on disk can be calibrated. Give its path or hub name.');
  const wantedRows = Math.max(1, Math.round(tokens / context));
  const selfRows = options.texts ? (options.self ? Math.ceil(wantedRows / 2) : 0) : wantedRows + 1;
  const textRows = options.texts
    ? splitTexts(tokenizer, options.texts, options.parseSpecialTokens, context, wantedRows + 1 - selfRows)
    : [];
  const rows = selfRows + textRows.length - 1;
  if (rows < 1)
    throw new InputError(
      `The text fills ${textRows.length} rows of ${context} tokens; calibration needs two or more, one of them to measure ` +
        'sensitivities. Use more text, a smaller --context, or --self.',
    );
  const { heads, kvHeads, headDim, layers, attentionScale: scale } = config;
  const codecShape = { layers, kvHeads, headDim, ropeFrequencies: rope.frequencies };
  const { pageTokens } = checkShape(codecShape);
  const perRow = Math.min(maxSamples({ context, pageTokens }), Math.ceil(samples / rows));
  const attention = { heads, kvHeads, headDim, scale, ropeFrequencies: rope.frequencies, context, pageTokens };
  const shape = { ...attention, samples: perRow, seed };
  const codecs = [...new Set([...(options.codecs ?? defaultCodecs(codecShape)), CENTERED_SPEC])];
  codecs.forEach(parseSpec);
  const grams: Float32Array[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const output = await readTensorAsFloat32(file.gguf, requireTensor(file.gguf, `blk.${layer}.attn_output.weight`));
    grams.push(outputGrams(output, config));
  }
  const text = [selfRows > 0 && 'self', textRows.length > 0 && sha256(textRows.flat().join())]
    .filter(Boolean)
    .join('+');
  const key = sha256(JSON.stringify([packageVersion, fingerprint, text, context, rows, perRow, seed])).slice(0, 16);
  const codecsHash = sha256(codecs.join()).slice(0, 8);
  const checkpoint = await openCheckpoint(join(await kvasirCacheDir(), 'calibrate', key));
  return {
    fingerprint,
    checkpoint,
    context,
    seed,
    rows,
    selfRows,
    textRows,
    text,
    shape,
    codecs,
    codecsHash,
    codecShape,
    grams,
  };
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

/** Splits the texts into rows and takes one row of each text in turn. The last row is for measuring sensitivities. */
function splitTexts(
  tokenizer: Tokenizer,
  texts: readonly string[],
  special: boolean | undefined,
  context: number,
  maxRows: number,
): number[][] {
  const lists = texts.map(text => {
    const ids = tokenizer.encode(text, { bos: tokenizer.addBos, parseSpecialTokens: special });
    return Array.from({ length: Math.floor(ids.length / context) }, (_, i) =>
      ids.slice(i * context, (i + 1) * context),
    );
  });
  const longest = Math.max(...lists.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) => lists.flatMap(list => list.slice(i, i + 1)))
    .flat()
    .slice(0, maxRows);
}
