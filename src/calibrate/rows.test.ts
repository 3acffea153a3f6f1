import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { InputError } from '../util/errors.ts';
import { createRows, type TokenizedText } from './rows.ts';

/** A text whose ids tell its number and the position. */
const textOf = (n: number, length: number): TokenizedText => ({
  name: `text ${n}`,
  ids: Array.from({ length }, (_, i) => 1000 * n + i),
});

const builtInOf = (n: number, length: number, share = 1) => ({ ...textOf(n, length), share });

describe('calibration rows', () => {
  it('of built-in texts have their shares, and are spread over the text', () => {
    const { rows, sources } = createRows([builtInOf(1, 95, 3), builtInOf(2, 45)], [], {
      context: 10,
      tokens: 40,
      defaultTokens: 100,
    });
    expect(rows.map(row => row[0])).toEqual([1010, 1040, 1060, 2020]);
    expect(sources).toEqual([
      { name: 'text 1', tokens: 30 },
      { name: 'text 2', tokens: 10 },
    ]);
  });

  it('of little text are mixed from parts of all texts', () => {
    const texts = [builtInOf(1, 95), builtInOf(2, 95), builtInOf(3, 95)];
    const options = { context: 10, tokens: 20, defaultTokens: 100, minParts: 6 };
    const { rows, sources } = createRows(texts, [], options);
    expect(rows.map(({ length }) => length)).toEqual([10, 10]);
    expect(rows.every(row => new Set(row.map(id => Math.floor(id / 1000))).size > 1)).toBe(true);
    expect(sources.map(({ name }) => name)).toEqual(['text 1', 'text 2', 'text 3']);
  });

  it('of given texts come from their starts, one of each in turn, and are at most half of all', () => {
    const { rows } = createRows([builtInOf(1, 100)], [textOf(2, 100), textOf(3, 100)], {
      context: 10,
      tokens: 60,
      defaultTokens: 100,
    });
    expect(rows.slice(3).map(row => row[0])).toEqual([2000, 3000, 2010]);
    const alone = createRows([], [textOf(2, 100), textOf(3, 15)], { context: 10, tokens: 40, defaultTokens: 100 });
    expect(alone.rows.map(row => row[0])).toEqual([2000, 3000, 2010, 2020]);
  });

  it('start with BOS where the model needs it', () => {
    const { rows, heldOut } = createRows([], [textOf(1, 50)], { context: 10, bos: 7, defaultTokens: 50 });
    expect(rows.map(row => row.slice(0, 2))).toEqual([1000, 1009, 1018, 1027].map(id => [7, id]));
    expect(rows.every(({ length }) => length === 10)).toBe(true);
    expect(heldOut).toEqual([[7, ...textOf(1, 50).ids.slice(-9)]]);
  });

  it('need a text that fills one, and some more', () => {
    expect(() => createRows([], [textOf(1, 19)], { context: 10, defaultTokens: 100 })).toThrow(InputError);
    expect(() => createRows([], [textOf(1, 19)], { context: 10, defaultTokens: 100 })).toThrow(
      /calibration needs two rows of 10 tokens/,
    );
    expect(createRows([], [textOf(1, 20)], { context: 10, defaultTokens: 100 }).rows).toHaveLength(1);
  });

  it('never contain what is held out: a row of the longest text, and parts of the others', () => {
    const lengths = fc.array(fc.integer({ min: 20, max: 200 }), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(lengths, lengths, fc.option(fc.integer({ min: 1, max: 500 }), { nil: undefined }), (a, b, tokens) => {
        const builtIn = a.map((length, n) => builtInOf(n, length, 1 + (length % 3)));
        const given = b.map((length, n) => textOf(10 + n, length));
        const { rows, heldOut, sources } = createRows(builtIn, given, { context: 10, tokens, defaultTokens: 100 });
        const read = new Set(rows.flat());
        expect(read.size).toBe(10 * rows.length);
        expect(heldOut.flat().some(id => read.has(id))).toBe(false);
        const [longest, ...others] = heldOut.map(({ length }) => length).sort((x, y) => y - x);
        expect(longest).toBe(10);
        expect(others.every(length => length === Math.floor(10 / heldOut.length))).toBe(true);
        expect(sources.reduce((sum, source) => sum + source.tokens, 0)).toBe(10 * rows.length);
        if (tokens !== undefined) expect(rows.length).toBeLessThanOrEqual(Math.max(1, Math.round(tokens / 10)));
      }),
    );
  });
});
