import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createDrafter, type Drafter } from './drafter.ts';

/** A drafter that has seen the first tokens, and adds the others one by one. */
function feed(text: readonly number[], first: number, each: (drafter: Drafter) => void) {
  const known = text.slice(0, first);
  const drafter = createDrafter(known);
  each(drafter);
  for (const id of text.slice(first)) {
    known.push(id);
    drafter.note();
    each(drafter);
  }
  return drafter;
}

/** Whether these tokens follow, somewhere in the text, the last four tokens. */
function follows(text: readonly number[], drafts: readonly number[]): boolean {
  const sought = [...text.slice(-4), ...drafts].join();
  return text.some((_, i) => text.slice(i, i + 4 + drafts.length).join() === sought && i + 4 < text.length);
}

describe('the drafter', () => {
  it('guesses what followed the last tokens before, and nothing if they are new', () => {
    const tokens = fc.array(fc.nat(2), { minLength: 1, maxLength: 80 });
    fc.assert(
      fc.property(tokens, fc.nat(80), (text, first) => {
        const known = text.slice(0, first);
        feed(text, Math.min(first, text.length), drafter => {
          const probabilities = drafter.probabilities();
          const count = probabilities.length;
          const drafts = drafter.draft(count);
          expect(drafts.length).toBe(count);
          expect(count).toBeLessThanOrEqual(7);
          expect(probabilities).toEqual(probabilities.toSorted((a, b) => b - a));
          expect(count > 0).toBe(follows(known, []));
          if (count > 0) expect(follows(known, drafts)).toBe(true);
          known.push(text[known.length]);
        });
      }),
    );
  });

  it('prefers the longest match', () => {
    const text = [9, 1, 2, 3, 4, 50, 51, 1, 2, 3, 4, 60, 61, 9, 1, 2, 3, 4];
    expect(createDrafter(text).draft(2)).toEqual([50, 51]);
  });

  it('is sure of long matches, and not of those that were often wrong', () => {
    const page = Array.from({ length: 60 }, (_, i) => i);
    const sums: number[] = [];
    const promise = (drafter: Drafter) => drafter.probabilities().reduce((sum, one) => sum + one, 0);
    feed([...page, ...page], 64, drafter => sums.push(promise(drafter)));
    expect(sums[0]).toBeLessThan(2.5);
    expect(sums[30]).toBeGreaterThan(4.5);
    // Four tokens match again and again, and the next is always new.
    const wrong = Array.from({ length: 60 }, (_, i) => [1, 2, 3, 4, 100 + i]).flat();
    const [probability] = feed([...wrong, 1, 2, 3, 4], 10, () => {}).probabilities();
    expect(probability).toBeLessThan(0.1);
  });
});
