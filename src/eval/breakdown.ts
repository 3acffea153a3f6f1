/** Divergence by position in a row, and by the class of the predicted token. */
import type { Tokenizer } from '../model/tokenizer.ts';
import type { Plan } from '../plan/plan.ts';

export interface BreakdownEntry {
  /** First position of a range, or a token class. */
  name: string;
  /** Mean KL divergence, in nats per token. */
  kld: number;
  /** Scored tokens. */
  tokens: number;
}

/** The divergence of one cache format, split two ways. */
export interface Breakdown {
  positions: BreakdownEntry[];
  classes: BreakdownEntry[];
}

/** Number of equal ranges that the positions are split into. */
const POSITION_BINS = 8;

const TOKEN_CLASSES = ['word', 'part of a word', 'number', 'punctuation', 'space', 'special'] as const;
type TokenClass = (typeof TOKEN_CLASSES)[number];

/** The class of a token by its vocabulary entry. A word starts with a space; a part of a word does not. */
function tokenClass(text: string): TokenClass {
  // Byte-level vocabularies write a space as Ġ and a new line as Ċ; SentencePiece writes ▁ and <0x0A>.
  const plain = text
    .replace(/[Ġ▁]/g, ' ')
    .replace(/Ċ|<0x0A>/g, '\n')
    .replace(/ĉ/g, '\t');
  if (/^<.+>$/.test(plain) && plain.length > 3) return 'special';
  const bare = plain.trim();
  if (bare === '') return 'space';
  if (/^[\p{N}.,]*\p{N}[\p{N}.,]*$/u.test(bare)) return 'number';
  if (/^[\p{P}\p{S}]+$/u.test(bare)) return 'punctuation';
  return /^\s/.test(plain) ? 'word' : 'part of a word';
}

/** Breaks down the divergence at positions `from` to `to`. */
function createBreakdown(from: number, to: number, classOf: (id: number) => TokenClass) {
  const width = Math.max(1, (to - from) / POSITION_BINS);
  const sums = new Map<string, { kld: number; tokens: number }>();
  const addTo = (name: string, kld: number) => {
    const sum = sums.get(name) ?? { kld: 0, tokens: 0 };
    sum.kld += kld;
    sum.tokens++;
    sums.set(name, sum);
  };
  const ranges = Array.from({ length: POSITION_BINS }, (_, i) => String(Math.round(from + i * width)));
  const entries = (names: readonly string[]) =>
    names.flatMap(name => {
      const sum = sums.get(name);
      return sum ? [{ name, kld: sum.kld / sum.tokens, tokens: sum.tokens }] : [];
    });
  return {
    add(position: number, next: number, kld: number) {
      addTo(ranges[Math.min(POSITION_BINS - 1, Math.floor((position - from) / width))], kld);
      addTo(classOf(next), kld);
    },
    result: (): Breakdown => ({ positions: entries(ranges), classes: entries(TOKEN_CLASSES) }),
  };
}

/** Collects one breakdown per plan; `add` takes what `measureDivergence` reports to `onScored`. */
export function createBreakdowns(from: number, to: number, tokenizer: Tokenizer) {
  const classes = Array.from({ length: tokenizer.vocabSize }, (_, id) => tokenClass(tokenizer.tokenText(id)));
  const bySpec = new Map<string, ReturnType<typeof createBreakdown>>();
  return {
    add({ spec }: Plan, position: number, next: number, kld: number) {
      const breakdown = bySpec.get(spec) ?? createBreakdown(from, to, id => classes[id]);
      bySpec.set(spec, breakdown);
      breakdown.add(position, next, kld);
    },
    result: (): Map<string, Breakdown> => new Map([...bySpec].map(([spec, breakdown]) => [spec, breakdown.result()])),
  };
}
