/** What the benches of several sequences share: who is measured, rates of streams that run together, comparisons with answers alone. */
import { InputError } from '../src/util/errors.ts';

/** What is measured: one engine with one KV cache format. */
export interface Contender {
  name: string;
  /** Brings `count` sequences to a depth, one after the other. Depths only grow. */
  fill(depth: number, count: number): Promise<void>;
  /** Decodes the first `count` sequences together and returns their tokens per second. */
  decode(count: number): Promise<number>;
  close(): Promise<void>;
}

export interface PromptContender extends Contender {
  /** Tokens per second of a prompt. What the first sequence holds is lost. */
  prefill(tokens: number): Promise<number>;
}

export interface BatchSetup {
  model: string;
  threads: number;
  /** Max sequences. */
  sequences: number;
  /** Max tokens per sequence. */
  context: number;
  /** Decoded tokens per sequence and round. */
  tokens: number;
}

type Tokens = Pick<AsyncIterator<unknown, unknown, void>, 'next'>;

/**
 * Reads `tokens` tokens of each stream and returns the tokens per second of all together while all of them decode: from
 * the first token of the last stream to the last token of the first.
 *
 * Rates are computed per stream, from its first to its last token in that window, and added. So it makes no difference
 * whether the tokens of a batch are delivered at once or one after the other.
 */
export async function decodeRate(streams: readonly Tokens[], tokens: number): Promise<number> {
  const times = await Promise.all(
    streams.map(async stream => {
      const read: number[] = [];
      while (read.length < tokens) {
        if ((await stream.next()).done)
          throw new InputError(`A stream ended after ${read.length} of ${tokens} tokens.`);
        read.push(performance.now());
      }
      return read;
    }),
  );
  const start = Math.max(...times.map(read => read[0]));
  const end = Math.min(...times.map(read => read[tokens - 1]));
  const rates = times.map(read => {
    const inside = read.filter(time => time >= start && time <= end);
    if (inside.length < 2)
      throw new InputError('A sequence ended before the others had decoded two tokens. Use more --tokens.');
    return (1000 * (inside.length - 1)) / (inside[inside.length - 1] - inside[0]);
  });
  return rates.reduce((sum, rate) => sum + rate, 0);
}

/** Fails the bench if a greedy answer depends on what ran beside it, or on what was reused. */
export function expectSameIds(expected: readonly number[], actual: readonly number[], what: string): void {
  if (expected.length === actual.length && expected.every((id, i) => id === actual[i])) return;
  let at = 0;
  while (expected[at] === actual[at]) at++;
  throw new InputError(
    `${what} gives other greedy tokens than alone: token ${at} is ${actual[at]}, expected ${expected[at]}.`,
  );
}
