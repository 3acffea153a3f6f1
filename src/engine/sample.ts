/**
 * From logits to the next token. The order is: penalties, temperature, then min-p, top-k and top-p, each on what the
 * one before left. Equal logits go to the lower id, and a seed gives the same tokens on every run.
 */
import { InputError } from '../errors.ts';
import type { Choice } from '../kernel/device.ts';
import { createRandom, randomSeed } from './random.ts';
import { applyRules, number, type Rule, whole } from './rules.ts';
import { createSelect } from './select.ts';

export interface SampleOptions {
  /** 0 takes the likeliest token (greedy). Default 0.7. */
  temperature?: number;
  /** Keep the k likeliest tokens; 0 keeps all. */
  topK?: number;
  /** Keep the likeliest tokens that together reach this probability; 1 keeps all. */
  topP?: number;
  /** Keep tokens at least this likely relative to the likeliest; 0 keeps all. */
  minP?: number;
  /** Divides the logits of tokens seen in the last `repetitionWindow`, prompt included (multiplies negative ones). 1 is off. */
  repetitionPenalty?: number;
  repetitionWindow?: number;
  /** Taken off a logit for each time the token was generated. */
  frequencyPenalty?: number;
  /** Taken off a logit once if the token was generated at all. */
  presencePenalty?: number;
  seed?: number;
  /** Also report this many of the likeliest tokens, and the chosen one's log probability. Off by default. */
  logprobs?: number;
}

export interface TokenLogprob {
  id: number;
  /** Natural logarithm of the model's own probability: before penalties, temperature and cuts. */
  logprob: number;
}

export interface Sampled {
  id: number;
  logprob?: number;
  top?: TokenLogprob[];
}

export interface Sampler {
  /** The seed in use: give it again to get the same tokens again. */
  readonly seed: number;
  /** Chooses a token, and counts it as generated. `logits` come back as they were. */
  sample(logits: Float32Array): Sampled;
  /** The next choice as data, for a device that can make it; undefined where it takes more than logits. */
  choice(): Omit<Choice, 'row'> | undefined;
  /** A token that was chosen so. */
  take(id: number | undefined): Sampled;
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

export const sampleRules = {
  temperature: number('a number from 0 to 100', n => n >= 0 && n <= 100),
  topK: whole(0),
  topP: number('a number above 0 and at most 1', n => n > 0 && n <= 1),
  minP: number('a number from 0 to 1', n => n >= 0 && n <= 1),
  repetitionPenalty: number('a number above 0 and at most 100', n => n > 0 && n <= 100),
  repetitionWindow: whole(0),
  frequencyPenalty: number('a number from -100 to 100', n => Math.abs(n) <= 100),
  presencePenalty: number('a number from -100 to 100', n => Math.abs(n) <= 100),
  seed: number('a whole number', Number.isSafeInteger),
  logprobs: whole(0),
} satisfies Record<keyof SampleOptions, Rule>;

export function createSampler(options: SampleOptions = {}, prompt: Iterable<number> = []): Sampler {
  applyRules(options, sampleRules);
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  const settings: Settings = { ...DEFAULTS, ...given };
  const random = createRandom(options.seed ?? randomSeed());
  const select = createSelect();
  const penalties = createPenalties(settings, prompt);

  const choose = (logits: Float32Array): number => {
    const { temperature, topK, topP, minP } = settings;
    const best = argmax(logits);
    if (temperature === 0 || topK === 1) return best;
    const max = logits[best]!;
    const floor = minP > 0 ? max + temperature * Math.log(minP) : Number.NEGATIVE_INFINITY;
    const weight = (id: number) => (logits[id]! >= floor ? Math.exp((logits[id]! - max) / temperature) : 0);

    if (topK === 0 && topP === 1) return draw(logits.length, weight, total(logits.length, weight), random.next());
    // Sorted candidates: k of them, or for top-p as many as it takes, found by asking for ever more.
    const limit = topK > 0 ? Math.min(topK, logits.length) : logits.length;
    const all = topK > 0 ? 0 : total(logits.length, weight);
    for (let n = topK > 0 ? limit : Math.min(64, limit); ; n = Math.min(64 * n, limit)) {
      const { ids, count } = select(logits, n);
      const rank = (i: number) => weight(ids[i]!);
      const wanted = topP * (all || total(count, rank));
      let sum = 0;
      let kept = 0;
      while (kept < count && sum < wanted) sum += rank(kept++);
      if (sum >= wanted || n === limit) return ids[draw(kept, rank, sum, random.next())]!;
    }
  };

  return {
    seed: random.seed,
    sample(logits) {
      checkLogits(logits);
      const id = penalties.during(logits, () => choose(logits));
      penalties.count(id);
      return settings.logprobs < 0 ? { id } : { id, ...logprobsOf(logits, id, settings.logprobs, select) };
    },
    choice() {
      if (penalties.active || settings.logprobs >= 0) return undefined;
      const { temperature, topK, topP, minP } = settings;
      const drawn = temperature !== 0 && topK !== 1;
      return { temperature, topK, topP, minP, random: drawn ? random.next() : 0 };
    },
    take(id) {
      if (id === undefined)
        throw new InputError("No token can be chosen: the model's output is broken, most likely by damaged weights.");
      return { id };
    },
  };
}

/** The first id, in order, at which the running sum passes `u` of the whole. */
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

function total(count: number, weight: (i: number) => number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += weight(i);
  return sum;
}

function argmax(logits: Float32Array): number {
  let best = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id]! > logits[best]!) best = id;
  return best;
}

function logprobsOf(logits: Float32Array, id: number, n: number, select: ReturnType<typeof createSelect>) {
  const max = logits[argmax(logits)]!;
  const norm = max + Math.log(total(logits.length, i => Math.exp(logits[i]! - max)));
  const { ids, count } = select(logits, n);
  const top = Array.from(ids.subarray(0, count), i => ({ id: i, logprob: logits[i]! - norm }));
  return { logprob: logits[id]! - norm, top };
}

/** Keeps what was generated, and puts the penalties on for the length of one choice. */
function createPenalties(settings: Settings, prompt: Iterable<number>) {
  const { repetitionPenalty, repetitionWindow, frequencyPenalty, presencePenalty } = settings;
  const repeats = repetitionPenalty !== 1 && repetitionWindow > 0;
  const counts = frequencyPenalty !== 0 || presencePenalty !== 0;
  const recent: number[] = repeats ? [...prompt].slice(-repetitionWindow) : [];
  const generated = new Map<number, number>();

  const penalize = (logits: Float32Array) => {
    for (const id of new Set(recent)) {
      const logit = logits[id]!;
      logits[id] = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
    }
    for (const [id, times] of generated) logits[id] = logits[id]! - times * frequencyPenalty - presencePenalty;
  };

  return {
    active: repeats || counts,

    count(id: number): void {
      if (counts) generated.set(id, (generated.get(id) ?? 0) + 1);
      if (repeats && recent.push(id) > repetitionWindow) recent.shift();
    },

    during<T>(logits: Float32Array, run: () => T): T {
      const ids = [...new Set([...recent, ...generated.keys()])];
      const outside = ids.find(id => !(id >= 0 && id < logits.length));
      if (outside !== undefined) {
        throw new InputError(`The prompt's token ${outside} is outside the vocabulary of ${logits.length}.`);
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

function checkLogits(logits: Float32Array): void {
  let finite = false;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id]!;
    if (Number.isNaN(logit) || logit === Number.POSITIVE_INFINITY) {
      throw new InputError(`Logit ${id} is ${logit}: the model's output is broken, most likely by damaged weights.`);
    }
    finite ||= logit !== Number.NEGATIVE_INFINITY;
  }
  if (!finite) throw new InputError('No token can be chosen: there are no logits, or all are -Infinity.');
}
