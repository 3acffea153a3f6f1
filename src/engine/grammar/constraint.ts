/** Grammars that a model's output must follow: compiled once, then one constraint per answer. */
import { InputError } from '../../errors.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';
import { type Automaton, createAutomaton } from './automaton.ts';
import type { Grammar } from './expression.ts';
import { createVocabulary, type Vocabulary } from './vocabulary.ts';

/** What limits the next token of one answer. */
export interface Constraint {
  /** The tokens that may come next, as a bitmask: bit `id & 31` of word `id >>> 5`. */
  mask(): Uint32Array;
  /** Takes the token that was chosen. */
  accept(id: number): void;
}

export interface Constraints {
  /** Grammars that were compiled so far. */
  readonly compiled: number;
  /** `key` identifies the grammar: it is compiled on the first call only. */
  create(key: string, grammar: () => Grammar): Constraint;
}

/** Compiled grammars that a model keeps. */
const MAX_GRAMMARS = 32;

export function createConstraints(tokenizer: Tokenizer): Constraints {
  let vocabulary: Vocabulary | undefined;
  let compiled = 0;
  /** Least recently used first. */
  const automata = new Map<string, Automaton>();

  const automatonFor = (key: string, grammar: () => Grammar): Automaton => {
    const known = automata.get(key);
    automata.delete(key);
    vocabulary ??= createVocabulary(tokenizer);
    const automaton = known ?? createAutomaton(grammar(), vocabulary);
    if (!known) compiled++;
    automata.set(key, automaton);
    const [oldest] = automata.keys();
    if (automata.size > MAX_GRAMMARS) automata.delete(oldest);
    return automaton;
  };

  return {
    get compiled() {
      return compiled;
    },
    create(key, grammar) {
      const automaton = automatonFor(key, grammar);
      const { symbolsOf, endIds } = vocabulary!;
      let state = automaton.start;
      return {
        mask: () => automaton.mask(state),
        accept(id) {
          if (endIds.includes(id)) return;
          for (const symbol of Array.from(symbolsOf(id))) {
            const next = automaton.next(state, symbol);
            if (!next) throw new InputError(`Token ${id} is not allowed by the schema.`);
            state = next;
          }
        },
      };
    },
  };
}
