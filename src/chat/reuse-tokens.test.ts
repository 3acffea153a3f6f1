import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { reuseTokens } from './reuse-tokens.ts';

/** Tokens are letters: a, b, ab, abc, ba. 0 is a control token. */
const TEXTS = ['', 'a', 'b', 'ab', 'abc', 'ba', 'c'];
const tokenBytes = (id: number) => new TextEncoder().encode(TEXTS[id]);
const textOf = (ids: readonly number[]) => ids.map(id => TEXTS[id] || '|').join('');
const reuse = (earlier: number[], next: number[]) => reuseTokens({ tokenBytes }, earlier, next);

describe('the tokens of an earlier prompt', () => {
  it('replace others with the same text', () => {
    expect(reuse([1, 2, 6], [3, 6, 1])).toEqual([1, 2, 6, 1]);
    expect(reuse([0, 4, 0], [0, 1, 2, 6, 0, 5])).toEqual([0, 4, 0, 5]);
  });

  it('are kept up to the last place where both have a token boundary', () => {
    // "ab" + "a" and "a" + "ba": the boundary inside "ba" is not one of the new prompt.
    expect(reuse([3, 1, 6], [1, 5, 1])).toEqual([3, 1, 1]);
    expect(reuse([3, 3], [1, 2, 1, 6])).toEqual([3, 1, 6]);
  });

  it('end where the text differs, and control tokens only match themselves', () => {
    expect(reuse([1, 1], [2, 1])).toEqual([2, 1]);
    expect(reuse([1, 0, 1], [1, 1])).toEqual([1, 1]);
    expect(reuse([], [1])).toEqual([1]);
  });

  it('never change the text', () => {
    const ids = fc.array(fc.integer({ min: 0, max: TEXTS.length - 1 }), { maxLength: 12 });
    fc.assert(
      fc.property(ids, ids, (earlier, next) => {
        const reused = reuse(earlier, next);
        expect(textOf(reused)).toBe(textOf(next));
        let shared = 0;
        while (shared < next.length && earlier[shared] === next[shared]) shared++;
        expect(reused.slice(0, shared)).toEqual(next.slice(0, shared));
      }),
    );
  });
});
