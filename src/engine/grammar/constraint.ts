/** Grammars that a model's output must follow: compiled once, then one constraint per answer. */
import { InputError } from '../../errors.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';
import { remember } from '../../remember.ts';
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
  /** `key` identifies the grammar: it is built on the first call only. Throws what `build` throws. */
  grammar(key: string, build: () => Grammar): Grammar;
  /** `key` identifies the grammar: it is compiled on the first call only. */
  create(key: string, grammar: () => Grammar): Constraint;
}

/** Grammars that a model keeps, and compiled ones. */
const MAX_GRAMMARS = 32;

export function createConstraints(tokenizer: Tokenizer): Constraints {
  let vocabulary: Vocabulary | undefined;
  let compiled = 0;
  const grammars = new Map<string, Grammar>();
  const automata = new Map<string, Automaton>();

  return {
    get compiled() {
      return compiled;
    },
    grammar: (key, build) => remember(grammars, key, build, MAX_GRAMMARS),
    create(key, grammar) {
      vocabulary ??= createVocabulary(tokenizer);
      const words = vocabulary;
      const build = () => {
        compiled++;
        return createAutomaton(grammar(), words);
      };
      const automaton = remember(automata, key, build, MAX_GRAMMARS);
      const { symbolsOf, endIds } = words;
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
