/**
 * Drafts: tokens that are likely to come next, without a second model. Code that is edited and documents that are asked
 * about are repeated in the answer, so the drafter looks for the last tokens in the prompt and in the answer so far, and
 * guesses that they are followed by what followed them before.
 *
 * A pass runs the next token and its drafts as rows of one chunk (pass.ts). The sampler then goes through the rows as if
 * they had run one by one, with the same random numbers, penalties and grammar. A draft that is the sampled token makes the
 * next row valid; at the first that is not, the sequence is cropped, and the rows after it are forgotten. So the text is
 * the same as without drafts, bit for bit where a row's result does not depend on the rows beside it: on js and wasm. On a
 * device that samples (webgpu) nothing is drafted: the next pass is recorded before the token is known.
 *
 * Until it is confirmed, a draft is in the f16 tail only, without its id: drafts never reach a page's last token
 * (`Sequence.maxDrafts`), so no page is sealed or checked by the guard with one, and neither the prefix index nor a session
 * can find one.
 *
 * How many rows pay is decided in each pass. A row costs time (schedule.ts measures it), and counts only if all drafts up
 * to its own are right. How often a guess is right depends on how many tokens before it match, so a hit rate is kept for
 * each range of match lengths. It is learned from every generated token, also while nothing is drafted: trying again costs
 * nothing. A match that goes on makes drafts longer; a miss makes them short, or ends them.
 */

export interface Drafter {
  /** Call it after each token that was added to the text. */
  note(): void;
  /** For each draft that there is, how likely it and all before it are right: never more than that of the one before. */
  probabilities(): number[];
  /** The first `count` drafts. */
  draft(count: number): number[];
}

/** Fewer tokens that match say little: with 2 to 5, edited code and quotes take as long, within 3 %. */
const MIN_MATCH = 4;
/** More say nothing new. */
const MAX_MATCH = 32;
/** With the token before them, two tiles of rows (schedule.ts). */
const MAX_DRAFTS = 7;
const NONE = -1;
/** Places that are compared when there is no match: the newest ones. */
const MAX_CANDIDATES = 16;
/** Hit rates are moving means over about this many guesses. */
const WINDOW = 16;
/** Hit rates before the first guess, of matches of 4, 8, 16 and 32 tokens or more. */
const FIRST_RATES = [0.6, 0.7, 0.8, 0.9];

/** `text`: the prompt and the answer so far. The caller adds to it. */
export function createDrafter(text: readonly number[]): Drafter {
  /** The end of the newest place, by the hash of its last MIN_MATCH tokens; and for each place, the one before it. */
  const newest = new Map<number, number>();
  const older: number[] = [];
  const rates = [...FIRST_RATES];
  let known = 0;
  /** Where the guessed token is, and how many tokens before it match. */
  let source: number | undefined;
  let matched = 0;

  const rateOf = (length: number) => Math.min(rates.length - 1, Math.floor(Math.log2(length / MIN_MATCH)));

  /** Number of tokens before `end` that are also the last ones of the known text. */
  const matchLength = (end: number): number => {
    let length = 0;
    while (length < MAX_MATCH && length < end && text[end - 1 - length] === text[known - 1 - length]) length++;
    return length;
  };

  const findSource = () => {
    source = undefined;
    matched = 0;
    let end = newest.get(hashBefore(text, known)) ?? NONE;
    for (let tries = 0; end !== NONE && tries < MAX_CANDIDATES; tries++) {
      const length = matchLength(end);
      if (length >= MIN_MATCH && length > matched) [source, matched] = [end, length];
      end = older[end];
    }
  };

  /** Takes in the tokens that were added, so that later ones can find them. */
  const learn = (end: number) => {
    for (; known < end; known++) {
      if (known < MIN_MATCH) continue;
      const hash = hashBefore(text, known);
      older[known] = newest.get(hash) ?? NONE;
      newest.set(hash, known);
    }
  };

  learn(text.length);
  findSource();

  return {
    note() {
      const isHit = source !== undefined && text[source] === text[known];
      if (source !== undefined) {
        const rate = rateOf(matched);
        rates[rate] += ((isHit ? 1 : 0) - rates[rate]) / WINDOW;
      }
      learn(text.length);
      if (!isHit) return findSource();
      source!++;
      matched = Math.min(MAX_MATCH, matched + 1);
    },
    probabilities() {
      const count = source === undefined ? 0 : Math.min(MAX_DRAFTS, text.length - source);
      let probability = 1;
      return Array.from({ length: count }, (_, i) => (probability *= rates[rateOf(Math.min(MAX_MATCH, matched + i))]));
    },
    draft: count => (source === undefined ? [] : text.slice(source, source + count)),
  };
}

/** A hash of the MIN_MATCH tokens before `end`. Places with the same one are compared token by token. */
function hashBefore(text: readonly number[], end: number): number {
  let hash = 0;
  for (let i = end - MIN_MATCH; i < end; i++) hash = (Math.imul(hash, 0x9e3779b1) + text[i]) | 0;
  return hash;
}
