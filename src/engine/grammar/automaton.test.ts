/** How much work a grammar may cost, counted in steps: all other answers wait for it. */
import { describe, expect, it } from 'vitest';
import { acceptsAnswer, openConstraints } from '../../../test/support/constraints.ts';
import { schemas } from '../../../test/support/schemas.ts';
import { InputError } from '../../util/errors.ts';
import { createAutomaton } from './automaton.ts';
import { createConstraints } from './constraint.ts';
import { type JsonSchema, schemaGrammar } from './schema.ts';
import { createTenantCache } from './tenant-cache.ts';
import { createVocabulary } from './vocabulary.ts';

/** A step takes about 0.1 µs, so that this is tens of milliseconds. */
const MAX_STEPS = 250_000;

/** Of a schema's states that differ in a counter only. */
const STEPS_PER_TOKEN = 500;

const { tokenizer } = await openConstraints();
const vocabulary = createVocabulary(tokenizer);
const alternatives = (make: (i: number) => string, count = 14) =>
  Array.from({ length: count }, (_, i) => make(i)).join('|');

/** Patterns that many places of the graph read at the same time. */
const HOSTILE: Record<string, string> = {
  'alternatives of long repetitions': alternatives(i => `${String.fromCharCode(97 + i)}.{1,${1000 - i}}`),
  'repeated alternatives that overlap': `^(?:${alternatives(i => `[${'abcdefghijklmnopqrst'.slice(i)}]{1,1000}`)}){1,1000}$`,
  'repetitions in repetitions': alternatives(i => `(?:.{1,${10 + i}} ){5,${900 - i}}`),
  'counters that run at the same time': `^(?:${alternatives(i => `.{${i + 5},${500 + i}}`)}){1,1000}$`,
  'words that are found anywhere': alternatives(i => `.{1,${1000 - i}}.{1,${900 - i}}${String.fromCharCode(97 + i)}`),
};

/** Follows a text as far as it goes, and returns the steps of the token that took most. */
function mostSteps(schema: JsonSchema, text: string): number {
  const automaton = createAutomaton(schemaGrammar(schema), vocabulary);
  let most = automaton.work;
  let state = automaton.start;
  try {
    for (const id of tokenizer.encode(text)) {
      const before = automaton.work;
      try {
        automaton.mask(state);
        for (const symbol of Array.from(vocabulary.symbolsOf(id))) {
          const next = automaton.next(state, symbol);
          if (!next) return most;
          state = next;
        }
      } finally {
        most = Math.max(most, automaton.work - before);
      }
    }
  } catch (error) {
    expect(error).toBeInstanceOf(InputError);
    expect(automaton.refusal).toBe(error);
  }
  return most;
}

describe('work per token', () => {
  it.each(Object.entries(HOSTILE))('is bounded for %s', (_, pattern) => {
    expect(mostSteps({ type: 'string', pattern }, `"${'abcdefghij klmno '.repeat(12)}"`)).toBeLessThan(MAX_STEPS);
  });

  it('is a tenth of that for usual schemas', () => {
    const texts = ['"abc def"', '{"name": "abc", "a": 1', '[{"a": 12.5e3}, "x"]', '2024-02-28'];
    for (const schema of schemas)
      for (const text of texts) expect(mostSteps(schema, text), JSON.stringify(schema)).toBeLessThan(MAX_STEPS / 10);
  });

  it('does not grow with parts of the grammar that are not reached', () => {
    const nested = (depth: number): string => (depth === 0 ? 'a' : `(?:${nested(depth - 1)}){4}`);
    // Written out, it would have 4^12 parts.
    expect(mostSteps({ type: 'string', pattern: `^${nested(12)}$` }, '"aaaa')).toBeLessThan(MAX_STEPS / 10);
    const values = Array.from({ length: 15_000 }, (_, i) => `value-${i * 7919}`);
    expect(mostSteps({ enum: values }, '"value-7919"')).toBeLessThan(MAX_STEPS / 10);
  });

  it('is none for what was met before, and little for the next characters of a long text', () => {
    const schema = { type: 'object', properties: { story: { type: 'string', minLength: 2000 } }, required: ['story'] };
    const automaton = createAutomaton(schemaGrammar(schema), vocabulary);
    const follow = (text: string) => {
      let state = automaton.start;
      for (const id of tokenizer.encode(text)) {
        automaton.mask(state);
        for (const symbol of Array.from(vocabulary.symbolsOf(id))) state = automaton.next(state, symbol)!;
      }
    };
    const text = `{"story": "${'Odin went to the well of Mimir and drank. '.repeat(10)}`;
    follow(text.slice(0, 100));
    const before = automaton.work;
    follow(text);
    const tokens = tokenizer.encode(text).length;
    // A token takes a thousandth of the time that the model needs for it.
    expect((automaton.work - before) / tokens).toBeLessThan(STEPS_PER_TOKEN);
    const after = automaton.work;
    follow(text);
    expect(automaton.work).toBe(after);
  });

  it('in the long run is a fifth of the most that one token may use', () => {
    const pattern = `^(?:${alternatives(i => `.{${i},${900 + i}}`)})$`;
    const automaton = createAutomaton(schemaGrammar({ type: 'string', pattern }), vocabulary);
    let state = automaton.start;
    let tokens = 0;
    try {
      for (const id of tokenizer.encode(`"${'abc defg '.repeat(80)}`)) {
        automaton.mask(state);
        for (const symbol of Array.from(vocabulary.symbolsOf(id))) state = automaton.next(state, symbol)!;
        tokens++;
      }
    } catch (error) {
      expect(error).toBeInstanceOf(InputError);
    }
    expect(automaton.work).toBeLessThan(MAX_STEPS + (tokens + 1) * (MAX_STEPS / 5));
  });
});

it('keeps a limited number of states, whatever answers follow a grammar', () => {
  const string = { type: 'string', maxLength: 600 };
  const properties = { a: string, b: string, c: string };
  const automaton = createAutomaton(
    schemaGrammar({ type: 'object', properties, required: ['a', 'b', 'c'] }),
    vocabulary,
  );
  const reachable = () => {
    const seen = new Set([automaton.start]);
    for (const state of seen) for (const next of state.next) if (next) seen.add(next);
    return seen.size;
  };
  for (let answer = 0; answer < 20; answer++) {
    const [a, b, c] = [1, 2, 3].map(i => 'x'.repeat(200 + ((answer * i * 97) % 400)));
    let state = automaton.start;
    for (const id of tokenizer.encode(JSON.stringify({ a, b, c }))) {
      automaton.mask(state);
      for (const symbol of Array.from(vocabulary.symbolsOf(id))) state = automaton.next(state, symbol)!;
    }
  }
  // Those that are kept, and as many of the generation before.
  expect(reachable()).toBeLessThan(2100);
});

describe('a grammar that was refused', () => {
  it('is refused again without work, before a prompt is read', () => {
    const constraints = createConstraints(tokenizer);
    const schema = { type: 'string', pattern: HOSTILE['alternatives of long repetitions'] };
    const create = () => constraints.create('hostile', () => schemaGrammar(schema));
    expect(() => acceptsAnswer(tokenizer, create(), '"abcdefghij klmno"')).toThrow(/too many readings/);
    expect(create).toThrow(/too many readings/);
    expect(constraints.compiled).toBe(1);
  });

  it('is not built again', () => {
    const constraints = createConstraints(tokenizer);
    let builds = 0;
    const build = () => {
      builds++;
      return schemaGrammar({ type: 'array', uniqueItems: true } as JsonSchema);
    };
    for (let i = 0; i < 3; i++) expect(() => constraints.grammar('x', build)).toThrow(/uniqueItems/);
    expect(builds).toBe(1);
  });
});

describe('tenants', () => {
  it('have compiled grammars of their own: times do not tell what others use', () => {
    const constraints = createConstraints(tokenizer);
    const create = (tenant: string) =>
      constraints.ofTenant(tenant).create('same', () => schemaGrammar({ type: 'boolean' }));
    create('alice');
    create('alice');
    expect(constraints.compiled).toBe(1);
    create('bob');
    expect(constraints.compiled).toBe(2);
  });

  it('lose none to a tenant that has many', () => {
    const cache = createTenantCache<string>(4);
    const made: string[] = [];
    const get = (tenant: string, key: string) =>
      cache.get(tenant, key, () => {
        made.push(tenant + key);
        return key;
      });
    get('bob', '1');
    for (let i = 0; i < 20; i++) get('alice', String(i));
    made.length = 0;
    get('bob', '1');
    get('alice', '19');
    expect(made).toEqual([]);
    get('alice', '0');
    expect(made).toEqual(['alice0']);
  });

  it('keep nothing under keys that are very long', () => {
    const cache = createTenantCache<number>(4);
    let made = 0;
    for (let i = 0; i < 2; i++) cache.get('alice', 'x'.repeat(2 ** 21), () => made++);
    expect(made).toBe(2);
  });
});
