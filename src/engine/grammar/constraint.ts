/** Grammars that a model's output must follow: compiled once per tenant, then one constraint per answer. */

import type { Tokenizer } from '../../model/tokenizer.ts';
import { InputError } from '../../util/errors.ts';
import { type Automaton, createAutomaton } from './automaton.ts';
import type { Grammar } from './expression.ts';
import { createTenantCache } from './tenant-cache.ts';
import { createVocabulary, type Vocabulary } from './vocabulary.ts';

/** What limits the next token of one answer. */
export interface Constraint {
  /** The tokens that may come next, as a bitmask: bit `id & 31` of word `id >>> 5`. */
  mask(): Uint32Array;
  /** Takes the token that was chosen. */
  accept(id: number): void;
}

export interface Constraints {
  /** Grammars that were compiled so far, of all tenants. */
  readonly compiled: number;
  /** `key` identifies the grammar: it is built on the first call only. Throws what `build` throws. */
  grammar(key: string, build: () => Grammar): Grammar;
  /** `key` identifies the grammar: it is compiled on the first call only. Throws at once if it was refused before. */
  create(key: string, grammar: () => Grammar): Constraint;
  /** The grammars of a tenant: no time tells which ones others use. */
  ofTenant(tenant?: string): Constraints;
}

/** Grammars that a model keeps, and compiled ones. */
const MAX_GRAMMARS = 32;

export function createConstraints(tokenizer: Tokenizer): Constraints {
  let vocabulary: Vocabulary | undefined;
  let compiled = 0;
  const grammars = createTenantCache<Grammar>(MAX_GRAMMARS);
  const automata = createTenantCache<Automaton>(MAX_GRAMMARS);

  const ofTenant = (tenant = ''): Constraints => ({
    get compiled() {
      return compiled;
    },
    grammar: (key, build) => grammars.get(tenant, key, build),
    create(key, grammar) {
      vocabulary ??= createVocabulary(tokenizer);
      const words = vocabulary;
      const automaton = automata.get(tenant, key, () => {
        compiled++;
        return createAutomaton(grammar(), words);
      });
      if (automaton.refusal) throw automaton.refusal;
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
    ofTenant,
  });
  return ofTenant();
}
