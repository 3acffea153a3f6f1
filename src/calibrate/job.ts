/** What there is to do: the text cut into rows, the shapes, and the place where the work is kept. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { checkShape } from '../codec/kv.ts';
import { parseSpec } from '../codec/spec.ts';
import type { ModelFile } from '../engine/engine.ts';
import { modelFingerprint } from '../engine/profile.ts';
import { InputError } from '../errors.ts';
import { readFloats, tensorOf } from '../model/gguf.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { outputGrams } from '../plan/metric.ts';
import type { PlanShape } from '../plan/plan.ts';
import { mostSamples, type StatisticsShape } from '../plan/statistics.ts';
import { kvasirCache } from '../plan/store.ts';
import { usualCodecs } from '../plan/usual.ts';
import { openState, type State } from './state.ts';

export interface JobOptions {
  /** Texts to learn from; without any the model writes all of it. */
  texts?: readonly string[];
  /** The model writes half of what is learned from, beside texts. */
  self?: boolean;
  /** Special tokens that are written out in the texts are read as such. */
  special?: boolean;
  /** How much of it: 65536 unless given. */
  tokens?: number;
  /** Tokens a row: 2048 unless given, or what the model was made for. */
  context?: number;
  /** Kept of every layer: 16384 unless given. */
  samples?: number;
  seed?: number;
  codecs?: readonly string[];
  /** Of the package: another one starts anew, since it may learn otherwise. */
  version: string;
}

export interface Job {
  fingerprint: string;
  state: State;
  context: number;
  seed: number;
  /** To calibrate on; one more is for the probes. */
  rows: number;
  /** Rows that the model writes; the given ones come after them. */
  own: number;
  given: number[][];
  /** sha256 of the given token ids, `self`, or both with a plus between. */
  text: string;
  shape: StatisticsShape;
  codecs: readonly string[];
  /** Of the codecs: what was learned and measured for others lies beside it. */
  mark: string;
  codecShape: PlanShape;
  /** [layer], see metric.ts. */
  grams: Float32Array[];
}

/** Centred keys are always learned: a mean costs nothing, and the probe needs it. */
const CENTRED = 'tq4-c';

export async function prepare(file: ModelFile, options: JobOptions): Promise<Job> {
  const { config, rope, tokenizer } = file;
  const { tokens = 65536, samples = 16384, seed = 0 } = options;
  const context = options.context ?? Math.min(2048, config.context);
  if (context < 16) throw new InputError(`Rows of ${context} tokens are too short to learn from. Take 16 or more.`);
  const fingerprint = await modelFingerprint(file);
  if (!fingerprint) throw new InputError('Only a model in a file can be calibrated. Give its path or name.');
  const asked = Math.max(1, Math.round(tokens / context));
  const own = options.texts ? (options.self ? Math.ceil(asked / 2) : 0) : asked + 1;
  const given = options.texts ? cutTexts(tokenizer, options.texts, options.special, context, asked + 1 - own) : [];
  const rows = own + given.length - 1;
  if (rows < 1)
    throw new InputError(
      `The text fills ${given.length} rows of ${context} tokens; calibration needs two or more, one of them to measure ` +
        'how much each layer matters. Give more text, a smaller --context, or use --self.',
    );
  const { heads, kvHeads, headDim, layers, attentionScale: scale } = config;
  const codecShape = { layers, kvHeads, headDim, turn: rope.frequencies };
  const { pageTokens } = checkShape(codecShape);
  const perRow = Math.min(mostSamples({ context, pageTokens }), Math.ceil(samples / rows));
  const look = { heads, kvHeads, headDim, scale, turn: rope.frequencies, context, pageTokens };
  const shape = { ...look, samples: perRow, seed };
  const codecs = [...new Set([...(options.codecs ?? usualCodecs(codecShape)), CENTRED])];
  codecs.forEach(parseSpec);
  const grams: Float32Array[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const output = await readFloats(file.gguf, tensorOf(file.gguf, `blk.${layer}.attn_output.weight`));
    grams.push(outputGrams(output, config));
  }
  const text = [own > 0 && 'self', given.length > 0 && sha256(given.flat().join())].filter(Boolean).join('+');
  const key = sha256(JSON.stringify([options.version, fingerprint, text, context, rows, perRow, seed])).slice(0, 16);
  const mark = sha256(codecs.join()).slice(0, 8);
  const state = await openState(join(await kvasirCache(), 'calibrate', key));
  return { fingerprint, state, context, seed, rows, own, given, text, shape, codecs, mark, codecShape, grams };
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

/** Rows of the texts, one of each in turn; the last one is for the probes. */
function cutTexts(
  tokenizer: Tokenizer,
  texts: readonly string[],
  special: boolean | undefined,
  context: number,
  most: number,
): number[][] {
  const lists = texts.map(text => {
    const ids = tokenizer.encode(text, { bos: tokenizer.addBos, special });
    return Array.from({ length: Math.floor(ids.length / context) }, (_, i) =>
      ids.slice(i * context, (i + 1) * context),
    );
  });
  const longest = Math.max(...lists.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) => lists.flatMap(list => list.slice(i, i + 1)))
    .flat()
    .slice(0, most);
}
