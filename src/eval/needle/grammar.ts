/**
 * Generates stories and facts from models/mimir.grammar.json. train/grammar.py does the same in Python: with the same random
 * numbers both give the same text, so that Mimir is asked what it was trained on.
 *
 * A text can contain {word} (a bound variable, or a random entry of that list; {Word} capitalizes it) and [a|b|c] (one of
 * these). List entries can contain them too.
 */
export interface Grammar {
  /** Lists of words, separated by spaces. */
  words: Record<string, string>;
  /** Lists of texts. */
  phrases: Record<string, string[]>;
  /** Variables that a story binds first: its characters and objects. */
  casts: Record<string, string>[];
  props: Record<string, string>;
  /** Sentences; '' starts a new paragraph. */
  stories: { title: string; text: string[] }[];
  facts: { key: Record<string, string>; value: string; state: string[]; ask: string[] }[];
  /** Ways to ask for a story. */
  requests: string[];
}

export interface Fact {
  /** Index into the grammar's facts. */
  kind: number;
  /** The variables of its subject. */
  key: Record<string, string>;
  /** Two facts with the same id would contradict each other. */
  id: string;
  statement: string;
  question: string;
  answer: string;
}

/** Returns numbers in [0, 1). */
export type RandomSource = () => number;

type Bound = Record<string, string>;

export interface StoryWriter {
  /** Sentences of a new story; '' starts a new paragraph. */
  story(): string[];
  /** Facts with different subjects; about a third of them are similar to another one. */
  facts(count: number): Fact[];
}

export function createStoryWriter(grammar: Grammar, draw: RandomSource): StoryWriter {
  const lists: Record<string, string[]> = { ...grammar.phrases };
  for (const [name, line] of Object.entries(grammar.words)) lists[name] = line.split(' ');
  const choose = <T>(items: readonly T[]): T => items[Math.floor(draw() * items.length)]!;

  const fill = (text: string, bound: Bound): string =>
    text.replace(/\{(\w+)\}|\[([^[\]]*)\]/g, (_, word: string | undefined, options: string) => {
      if (word === undefined) return fill(choose(options.split('|')), bound);
      const small = word[0]!.toLowerCase() + word.slice(1);
      const found = bound[small] ?? fill(choose(lists[small]!), bound);
      return word === small ? found : found[0]!.toUpperCase() + found.slice(1);
    });
  const sentence = (text: string, bound: Bound) => fill(text, bound).replace(/\b([Aa]) (?=[aeiou])/g, '$1n ');

  function story(): string[] {
    const bound: Bound = {};
    for (const [slot, text] of Object.entries({ ...choose(grammar.casts), ...grammar.props }))
      bound[slot] = fill(text, bound);
    const plot = choose(grammar.stories);
    // The unused title consumes the same random numbers as in training.
    sentence(plot.title, bound);
    return plot.text.map(text => sentence(text, bound));
  }

  /** A fact similar to another one is of the same kind, and its subject differs in one word. */
  function fact(similar?: Fact): Fact {
    const kind = similar?.kind ?? Math.floor(draw() * grammar.facts.length);
    const form = grammar.facts[kind]!;
    const kept: Bound = { ...similar?.key };
    if (similar) delete kept[choose(Object.keys(kept))];
    const key: Bound = {};
    for (const [slot, text] of Object.entries(form.key)) key[slot] = kept[slot] ?? fill(text, {});
    const answer = fill(form.value, {});
    const bound = { ...key, value: answer };
    return {
      kind,
      key,
      id: `${kind} ${Object.values(key).join(' ')}`,
      statement: sentence(choose(form.state), bound),
      question: sentence(choose(form.ask), bound),
      answer,
    };
  }

  function facts(count: number): Fact[] {
    const found = new Map<string, Fact>();
    while (found.size < count) {
      const similar = found.size > 0 && draw() < 0.3 ? choose([...found.values()]) : undefined;
      const next = fact(similar);
      if (!found.has(next.id)) found.set(next.id, next);
    }
    return [...found.values()];
  }

  return { story, facts };
}
