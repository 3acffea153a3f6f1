/**
 * Stories and facts from models/mimir.grammar.json. train/grammar.py is the same in Python: for the same random numbers
 * both make the same text, so what Mimir is asked is what it was trained on.
 *
 * A text may hold {word} (a bound variable, or any entry of that list; {Word} is the same with a capital) and [a|b|c]
 * (one of these). Entries of lists may hold the same.
 */
export interface Grammar {
  /** Lists of plain words, with a space between. */
  words: Record<string, string>;
  /** Lists whose entries are texts. */
  phrases: Record<string, string[]>;
  /** What a story binds before it begins: who it is about, and what happens to be in it. */
  casts: Record<string, string>[];
  props: Record<string, string>;
  /** Sentences; '' stands for a new paragraph. */
  stories: { title: string; text: string[] }[];
  facts: { key: Record<string, string>; value: string; state: string[]; ask: string[] }[];
  /** Ways to ask for a story. */
  requests: string[];
}

export interface Fact {
  /** Which of the grammar's facts it is. */
  kind: number;
  /** What it is about. */
  key: Record<string, string>;
  /** Two facts with one id would contradict each other. */
  id: string;
  statement: string;
  question: string;
  answer: string;
}

/** Numbers in [0, 1). */
export type Draw = () => number;

type Bound = Record<string, string>;

export interface Writer {
  /** Sentences of a new story; '' stands for a new paragraph. */
  story(): string[];
  /** Facts that differ in what they are about; about a third of them are near another one. */
  facts(count: number): Fact[];
}

export function createWriter(grammar: Grammar, draw: Draw): Writer {
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
    // A title is drawn even where nobody reads it: the numbers must run as they do in training.
    sentence(plot.title, bound);
    return plot.text.map(text => sentence(text, bound));
  }

  /** One near another asks the same of a thing whose name differs in one word. */
  function fact(near?: Fact): Fact {
    const kind = near?.kind ?? Math.floor(draw() * grammar.facts.length);
    const form = grammar.facts[kind]!;
    const kept: Bound = { ...near?.key };
    if (near) delete kept[choose(Object.keys(kept))];
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
      const near = found.size > 0 && draw() < 0.3 ? choose([...found.values()]) : undefined;
      const made = fact(near);
      if (!found.has(made.id)) found.set(made.id, made);
    }
    return [...found.values()];
  }

  return { story, facts };
}
