/** The divergence of a conversation in shadow mode, measured on its own text. */
import type { Sequence } from '../cache/sequence.ts';
import type { Chunk } from '../model/batch.ts';
import { CapacityError } from '../util/errors.ts';
import type { Engine } from './engine.ts';
import { compareLogProbs, logSoftmax } from './log-probs.ts';
import { step } from './step.ts';

/** What the codes change in the model's predictions, compared with f16 pages. */
export interface LiveDivergence {
  /** KL divergence, in nats per token. */
  nats: number;
  /** Fraction of tokens whose most likely next token is the same, 0 to 1. */
  top1: number;
  /** Tokens that were compared: the newest ones. */
  tokens: number;
}

/** At least this many tokens are compared, if there are as many after the first page. */
const MIN_TOKENS = 64;

/**
 * Runs the newest tokens again, once reading codes and once reading f16 pages, from a page boundary on. Undefined if no page
 * is sealed before them, or if there is no room for the copies.
 */
export async function measureLiveDivergence(engine: Engine, sequence: Sequence): Promise<LiveDivergence | undefined> {
  const from = sequence.croppedLength(sequence.length - MIN_TOKENS);
  if (from <= sequence.droppedTokens || from === sequence.length) return undefined;
  const tokens = sequence.ids.slice(from);
  const copies: Sequence[] = [];
  const reference: Float32Array[] = [];
  let [nats, same] = [0, 0];
  /** Runs a copy; the first one is the reference. */
  const run = async (exact: boolean) => {
    const copy = sequence.fork();
    copies.push(copy);
    copy.crop(from);
    const chunk: Chunk = { sequence: copy, tokens, prefill: true, exact, logits: 'all' };
    await step(engine, [chunk], {
      onLogits(_, row, logits) {
        const logProbs = logSoftmax(logits);
        if (exact) {
          reference[row] = logProbs;
          return;
        }
        const compared = compareLogProbs(logProbs, reference[row]);
        nats += compared.kld;
        if (compared.same) same++;
      },
    });
  };
  try {
    await run(true);
    await run(false);
  } catch (error) {
    if (error instanceof CapacityError) return undefined;
    throw error;
  } finally {
    for (const copy of copies) copy.dispose();
  }
  return { nats: nats / tokens.length, top1: same / tokens.length, tokens: tokens.length };
}
