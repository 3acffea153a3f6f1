/**
 * Samples the next token from logits. Order: bias and penalties, the constraint's mask, temperature, min-p, top-k, top-p, each applied to the tokens that
 * the previous one kept. The lower id wins ties. The same seed gives the same tokens.
 */

import type { SamplingRequest } from '../kernel/device.ts';
import { isPlainObject } from '../util/describe-value.ts';
import { InputError, optionError } from '../util/errors.ts';
import { applyRules, integer, number, type Rule, rule } from '../util/rules.ts';
import { ESTIMATE_ERROR, estimateWeights } from './estimated-weights.ts';
import type { Constraint } from './grammar/constraint.ts';
import { createRandom, randomSeed } from './random.ts';
import { createTopK } from './top-k.ts';

/** How the next token is sampled. */
export interface SampleOptions {
  /** 0 to 100. 0 always takes the most likely token (greedy). Default: 0.7. */
  temperature?: number;
  /** Keep the k most likely tokens; 0 keeps all. Default: 0. */
  topK?: number;
  /** Keep the most likely tokens whose probabilities sum to this; 1 keeps all. Default: 1. */
  topP?: number;
  /** Keep tokens with at least this fraction of the most likely token's probability; 0 keeps all. Default: 0. */
  minP?: number;
  /** Divides positive and multiplies negative logits of the last `repetitionWindow` tokens, prompt included. Default: 1, off. */
  repetitionPenalty?: number;
  /** In tokens. Default: 64. */
  repetitionWindow?: number;
  /** Subtracted from a logit for each time the token was generated. Default: 0. */
  frequencyPenalty?: number;
  /** Subtracted once from the logit of every generated token. Default: 0. */
  presencePenalty?: number;
  /** Added to the logits of these token ids; -100 to 100. -100 excludes a token in effect. */
  logitBias?: Readonly<Record<number, number>>;
  /** Any integer. Default: random; the result has the seed in use. */
  seed?: number;
  /** Report the log probability of each token and of this many most likely ones. Default: off; 0 reports the token's only. */
  logprobs?: number;
}

/** A token and its log probability. */
export interface TokenLogprob {
  id: number;
  /** Natural logarithm of the model's probability, before penalties, temperature and top-k, top-p and min-p. */
  logprob: number;
}

/** The log probabilities at one position: of the generated token, and of the most likely ones. */
export interface TokenLogprobs extends TokenLogprob {
  /** The `logprobs` most likely tokens, most likely first. */
  top: TokenLogprob[];
}

/** A sampled token; with its log probabilities if the option `logprobs` is set. */
export interface Sampled extends Partial<TokenLogprobs> {
  id: number;
}

export interface Sampler {
  /** The seed in use: pass it again to get the same tokens. */
  readonly seed: number;
  /** Samples a token and counts it as generated. Leaves `logits` unchanged. */
  sample(logits: Float32Array): Sampled;
  /** Parameters for sampling the next token on a device; undefined if that needs penalties, log probabilities or a mask. */
  deviceSampling(): Omit<SamplingRequest, 'row'> | undefined;
  /** Accepts a token that a device sampled with these parameters. */
  accept(id: number | undefined): Sampled;
}

const DEFAULTS = {
  temperature: 0.7,
  topK: 0,
  topP: 1,
  minP: 0,
  repetitionPenalty: 1,
  repetitionWindow: 64,
  frequencyPenalty: 0,
  presencePenalty: 0,
  logprobs: -1,
};

type Settings = typeof DEFAULTS;

const isBias = (value: unknown) => typeof value === 'number' && Math.abs(value) <= 100;

export const sampleRules = {
  temperature: number('a number from 0 to 100', n => n >= 0 && n <= 100),
  topK: integer(0),
  topP: number('a number above 0 and at most 1', n => n > 0 && n <= 1),
  minP: number('a number from 0 to 1', n => n >= 0 && n <= 1),
  repetitionPenalty: number('a number above 0 and at most 100', n => n > 0 && n <= 100),
  repetitionWindow: integer(0),
  frequencyPenalty: number('a number from -100 to 100', n => Math.abs(n) <= 100),
  presencePenalty: number('a number from -100 to 100', n => Math.abs(n) <= 100),
  logitBias: rule(
    'an object from token ids to numbers from -100 to 100',
    value => isPlainObject(value) && Object.entries(value).every(([id, bias]) => /^\d{1,9}$/.test(id) && isBias(bias)),
  ),
  seed: number('a whole number', Number.isSafeInteger),
  logprobs: integer(0),
} satisfies Record<keyof SampleOptions, Rule>;

/** `constraint`: what the tokens must follow. */
export function createSampler(
  options: SampleOptions = {},
  prompt: Iterable<number> = [],
  constraint?: Constraint,
): Sampler {
  applyRules(options, sampleRules);
  const definedOptions = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  const settings: Settings = { ...DEFAULTS, ...definedOptions };
  const random = createRandom(options.seed ?? randomSeed());
  const select = createTopK();
  const penalties = createPenalties(settings, prompt, options.logitBias);
  let masked = new Float32Array(0);

  const choose = (logits: Float32Array, best: number): number => {
    const { temperature, topK, topP, minP } = settings;
    if (temperature === 0 || topK === 1) return best;
    const max = logits[best]!;
    const floor = minP > 0 ? max + temperature * Math.log(minP) : Number.NEGATIVE_INFINITY;
    const weight = (id: number) => (logits[id]! >= floor ? Math.exp((logits[id]! - max) / temperature) : 0);
    const u = random.next();

    if (topK === 0 && topP === 1) {
      const id = estimateWeights(logits, max, temperature, floor).draw(u);
      return id ?? draw(logits.length, weight, sumWeights(logits.length, weight), u);
    }
    // Sorted candidates: k of them; for top-p, more and more until their probabilities suffice.
    const limit = topK > 0 ? Math.min(topK, logits.length) : logits.length;
    let total = topK > 0 ? 0 : estimateWeights(logits, max, temperature, floor).total;
    let error = ESTIMATE_ERROR * total;
    for (let n = topK > 0 ? limit : Math.min(64, limit); ; n = Math.min(64 * n, limit)) {
      const { ids, count } = select(logits, n);
      const weightAt = (i: number) => weight(ids[i]!);
      const keep = () => {
        const target = topP * (total || sumWeights(count, weightAt));
        let [sum, before, kept] = [0, 0, 0];
        while (kept < count && sum < target) {
          before = sum;
          sum += weightAt(kept++);
        }
        return { sum, kept, enough: sum >= target, near: Math.min(Math.abs(sum - target), Math.abs(before - target)) };
      };
      let found = keep();
      if (found.near < error) {
        // The estimate could have decided: use the exact sum.
        total = sumWeights(logits.length, weight);
        error = 0;
        found = keep();
      }
      if (found.enough || n === limit) return ids[draw(found.kept, weightAt, found.sum, u)]!;
    }
  };

  return {
    seed: random.seed,
    sample(logits) {
      const best = checkedArgmax(logits);
      const chooseAllowed = () => {
        if (!constraint) return choose(logits, penalties.active ? argmax(logits) : best);
        if (masked.length !== logits.length) masked = new Float32Array(logits.length);
        applyMask(logits, constraint.mask(), masked);
        return choose(masked, checkedArgmax(masked));
      };
      const id = penalties.active ? penalties.during(logits, chooseAllowed) : chooseAllowed();
      penalties.count(id);
      constraint?.accept(id);
      return settings.logprobs < 0 ? { id } : { id, ...computeLogprobs(logits, id, settings.logprobs, select) };
    },
    deviceSampling() {
      if (constraint || penalties.active || settings.logprobs >= 0) return undefined;
      const { temperature, topK, topP, minP } = settings;
      const drawn = temperature !== 0 && topK !== 1;
      return { temperature, topK, topP, minP, random: drawn ? random.next() : 0 };
    },
    accept(id) {
      if (id === undefined)
        throw new InputError("No token can be sampled: the model's output is broken, most likely by damaged weights.");
      return { id };
    },
  };
}

/** The first index at which the cumulative weight exceeds `u * sum`. */
function draw(count: number, weight: (i: number) => number, sum: number, u: number): number {
  const target = u * sum;
  let running = 0;
  let last = 0;
  for (let i = 0; i < count; i++) {
    const w = weight(i);
    if (w === 0) continue;
    running += w;
    last = i;
    if (running > target) return i;
  }
  return last;
}

function sumWeights(count: number, weight: (i: number) => number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += weight(i);
  return sum;
}

function argmax(logits: Float32Array): number {
  let best = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id]! > logits[best]!) best = id;
  return best;
}

function computeLogprobs(logits: Float32Array, id: number, n: number, select: ReturnType<typeof createTopK>) {
  const max = logits[argmax(logits)]!;
  const norm = max + Math.log(sumWeights(logits.length, i => Math.exp(logits[i]! - max)));
  const { ids, count } = select(logits, n);
  const top = Array.from(ids.subarray(0, count), i => ({ id: i, logprob: logits[i]! - norm }));
  return { logprob: logits[id]! - norm, top };
}

/** Copies the logits of the tokens whose bit is set; the others become -Infinity. */
function applyMask(logits: Float32Array, mask: Uint32Array, masked: Float32Array): void {
  for (let start = 0, word = 0; start < logits.length; start += 32, word++) {
    const bits = mask[word] ?? 0;
    const end = Math.min(start + 32, logits.length);
    if (bits === 0) masked.fill(Number.NEGATIVE_INFINITY, start, end);
    else
      for (let id = start; id < end; id++)
        masked[id] = (bits >>> (id & 31)) & 1 ? logits[id]! : Number.NEGATIVE_INFINITY;
  }
}

/** Counts generated tokens, and applies bias and penalties while one token is sampled. */
function createPenalties(
  settings: Settings,
  prompt: Iterable<number>,
  logitBias: Readonly<Record<number, number>> = {},
) {
  const { repetitionPenalty, repetitionWindow, frequencyPenalty, presencePenalty } = settings;
  const repeats = repetitionPenalty !== 1 && repetitionWindow > 0;
  const counts = frequencyPenalty !== 0 || presencePenalty !== 0;
  const recent: number[] = repeats ? [...prompt].slice(-repetitionWindow) : [];
  const generated = new Map<number, number>();
  const biases = Object.entries(logitBias).map(([id, bias]) => [Number(id), bias] as const);

  const penalize = (logits: Float32Array) => {
    for (const [id, bias] of biases) logits[id] = logits[id]! + bias;
    for (const id of new Set(recent)) {
      const logit = logits[id]!;
      logits[id] = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
    }
    for (const [id, times] of generated) logits[id] = logits[id]! - times * frequencyPenalty - presencePenalty;
  };

  return {
    active: repeats || counts || biases.length > 0,

    count(id: number): void {
      if (counts) generated.set(id, (generated.get(id) ?? 0) + 1);
      if (repeats && recent.push(id) > repetitionWindow) recent.shift();
    },

    during<T>(logits: Float32Array, run: () => T): T {
      const ids = [...new Set([...recent, ...generated.keys(), ...biases.map(([id]) => id)])];
      const outside = ids.find(id => !(id >= 0 && id < logits.length));
      if (outside !== undefined) {
        const problem = `has the token ${outside}; ids are 0 to ${logits.length - 1}.`;
        throw biases.some(([id]) => id === outside)
          ? optionError('logitBias', problem)
          : new InputError(`The prompt ${problem}`);
      }
      const before = ids.map(id => logits[id]!);
      penalize(logits);
      try {
        return run();
      } finally {
        ids.forEach((id, i) => {
          logits[id] = before[i]!;
        });
      }
    },
  };
}

/** The most likely token. Throws if a logit is NaN or Infinity, or if none is finite. */
function checkedArgmax(logits: Float32Array): number {
  let best = 0;
  let max = Number.NEGATIVE_INFINITY;
  let hasNaN = false;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id]!;
    if (logit > max) {
      max = logit;
      best = id;
    } else if (Number.isNaN(logit)) hasNaN = true;
  }
  if (hasNaN || max === Number.POSITIVE_INFINITY) {
    const id = logits.findIndex(logit => Number.isNaN(logit) || logit === Number.POSITIVE_INFINITY);
    throw new InputError(`Logit ${id} is ${logits[id]}: the model's output is broken, most likely by damaged weights.`);
  }
  if (max === Number.NEGATIVE_INFINITY)
    throw new InputError('No token can be sampled: there are no logits, or all are -Infinity.');
  return best;
}
