/** Documents with planted facts: reproducible, of the given length, facts at the given depths. */
import { describe, expect, it } from 'vitest';
import { createRandom } from '../../codec/parts/random.ts';
import { createDocument, evenDepths, readGrammar } from './document.ts';
import { createStoryWriter } from './grammar.ts';

const grammar = await readGrammar();
const count = (text: string) => text.split(/\s+/).filter(Boolean).length;
const make = (seed: number, tokens = 2000, depths = evenDepths(10)) =>
  createDocument(grammar, { seed, tokens, depths, count });

describe('a document', () => {
  it('is the same for the same seed, and differs between seeds', () => {
    expect(make(1)).toEqual(make(1));
    expect(make(2).text).not.toBe(make(1).text);
  });

  it('has the given length, within a sentence', () => {
    for (const tokens of [300, 2000, 6000]) {
      const length = count(make(3, tokens).text);
      expect(length).toBeGreaterThanOrEqual(tokens);
      expect(length).toBeLessThan(tokens + 60);
    }
  });

  it('states every fact once, at about the given depth', () => {
    for (let seed = 1; seed <= 20; seed++) {
      const { text, facts } = make(seed);
      for (const { statement, depth } of facts) {
        const at = text.indexOf(statement);
        expect(at, statement).toBeGreaterThan(0);
        expect(text.indexOf(statement, at + 1)).toBe(-1);
        expect(Math.abs(at / text.length - depth)).toBeLessThan(0.06);
      }
      expect(new Set(facts.map(({ id }) => id)).size).toBe(facts.length);
    }
  });

  it('plants facts at both ends, with depths in any order', () => {
    const { text, facts } = make(4, 500, [1, 0]);
    expect(text.indexOf(facts[1]!.statement)).toBeLessThan(200);
    expect(text.trim().endsWith(facts[0]!.statement)).toBe(true);
  });

  it('rejects depths outside 0 to 1', () => {
    expect(() => make(1, 500, [1.5])).toThrow('0 to 1');
  });
});

describe('the grammar', () => {
  const writer = createStoryWriter(grammar, createRandom(7).uniform);

  it('fills every slot', () => {
    const stories = Array.from({ length: 400 }, () => writer.story().join(' '));
    const facts = writer.facts(400).map(fact => `${fact.statement} ${fact.question} ${fact.answer}`);
    for (const text of [...stories, ...facts]) expect(text).not.toMatch(/[{}[\]|]|undefined/);
  });

  it('has the answer and the subject of every question in its statement', () => {
    for (const { statement, question, answer, key } of writer.facts(400)) {
      expect(statement).toContain(answer);
      for (const part of Object.values(key)) {
        expect(statement).toContain(part);
        expect(question).toContain(part);
      }
    }
  });

  it('generates the same text as train/grammar.py', () => {
    const { story, facts } = createStoryWriter(grammar, createRandom(1).uniform);
    // As train/grammar.py makes them from seed 1.
    expect(facts(2).map(({ statement }) => statement)).toEqual([
      'The glass spoon costs 1304 crowns.',
      'The polished hat was a gift from Kethox to Kexzus.',
    ]);
    expect(story()[0]).toBe('Dark clouds were moving in when Lena and the parrot left for the factory.');
  });
});
