/** Where divergence lies: by position in a row, and by the kind of token that is to be predicted. */

export interface Part {
  name: string;
  /** Nats a token. */
  kld: number;
  tokens: number;
}

export interface Breakdown {
  positions: Part[];
  classes: Part[];
}

export interface Breaker {
  add(position: number, next: number, kld: number): void;
  result(): Breakdown;
}

/** Parts of a row that are told apart. */
const STRETCHES = 8;

export const TOKEN_CLASSES = ['word', 'part of a word', 'number', 'punctuation', 'space', 'special'] as const;
export type TokenClass = (typeof TOKEN_CLASSES)[number];

/** The class of a token by its text as vocabularies write it: a word begins after a space, a part does not. */
export function tokenClass(text: string): TokenClass {
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

/** Of positions `from` to `to`. */
export function createBreaker(from: number, to: number, classOf: (id: number) => TokenClass): Breaker {
  const width = Math.max(1, (to - from) / STRETCHES);
  const sums = new Map<string, { kld: number; tokens: number }>();
  const take = (name: string, kld: number) => {
    const sum = sums.get(name) ?? { kld: 0, tokens: 0 };
    sum.kld += kld;
    sum.tokens++;
    sums.set(name, sum);
  };
  const stretches = Array.from({ length: STRETCHES }, (_, i) => String(Math.round(from + i * width)));
  const parts = (names: readonly string[]) =>
    names.flatMap(name => {
      const sum = sums.get(name);
      return sum ? [{ name, kld: sum.kld / sum.tokens, tokens: sum.tokens }] : [];
    });
  return {
    add(position, next, kld) {
      take(stretches[Math.min(STRETCHES - 1, Math.floor((position - from) / width))], kld);
      take(classOf(next), kld);
    },
    result: () => ({ positions: parts(stretches), classes: parts(TOKEN_CLASSES) }),
  };
}
