import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createDrafter } from './drafter.ts';

/** A drafter that has seen the first tokens, and adds the others one by one. */
function feed(text: readonly number[], first: number, each: (drafter: ReturnType<typeof createDrafter>) => void) {
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

/** Whether these tokens follow, somewhere in the text, the last three tokens. */
function follows(text: readonly number[], drafts: readonly number[]): boolean {
  const sought = [...text.slice(-3), ...drafts].join();
  return text.some((_, i) => text.slice(i, i + 3 + drafts.length).join() === sought && i + 3 < text.length);
}

describe('the drafter', () => {
  it('guesses what followed the last tokens before, and nothing if they are new', () => {
    const tokens = fc.array(fc.nat(3), { minLength: 1, maxLength: 80 });
    fc.assert(
      fc.property(tokens, fc.nat(80), (text, first) => {
        const known = text.slice(0, first);
        feed(text, Math.min(first, text.length), drafter => {
          const count = drafter.count(0);
          const drafts = drafter.draft(count);
          expect(drafts.length).toBe(count);
          expect(count).toBeLessThanOrEqual(8);
          expect(count > 0).toBe(follows(known, []));
          if (count > 0) expect(follows(known, drafts)).toBe(true);
          known.push(text[known.length]);
        });
      }),
    );
  });

  it('prefers the longest match', () => {
    const text = [9, 1, 2, 3, 50, 51, 1, 2, 3, 60, 61, 9, 1, 2, 3];
    expect(createDrafter(text).draft(2)).toEqual([50, 51]);
  });

  it('guesses more tokens while they are right, and none after they were often wrong', () => {
    const page = Array.from({ length: 60 }, (_, i) => i);
    const counts: number[] = [];
    feed([...page, ...page], 63, drafter => counts.push(drafter.count(0.3)));
    expect(counts[0]).toBeLessThan(4);
    expect(counts[20]).toBe(8);
    // Three tokens match again and again, and the next is always new.
    const wrong = Array.from({ length: 60 }, (_, i) => [1, 2, 3, 100 + i]).flat();
    const last = feed([...wrong, 1, 2, 3], 10, () => {});
    expect(last.count(0)).toBeGreaterThan(0);
    expect(last.count(0.3)).toBe(0);
  });
});
