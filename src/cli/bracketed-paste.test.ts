import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createPasteSplitter, decodeLine, encodePaste, type InputPiece } from './bracketed-paste.ts';

const paste = (text: string) => `\x1b[200~${text}\x1b[201~`;

/** Splits, then joins adjacent pieces of keys. */
function split(chunks: string[]): InputPiece[] {
  const splitter = createPasteSplitter();
  const pieces = [...chunks.flatMap(chunk => splitter.push(chunk)), ...splitter.flush()];
  return pieces.reduce<InputPiece[]>((list, piece) => {
    const last = list.at(-1);
    if (last && 'keys' in last && 'keys' in piece) list[list.length - 1] = { keys: last.keys + piece.keys };
    else list.push(piece);
    return list;
  }, []);
}

describe('createPasteSplitter', () => {
  it('separates pasted text from typed keys, however the input is split into chunks', () => {
    const text = `ab\x1b[A${paste('one\rtwo\r')}c\r${paste('')}${paste('x\x1b[31m')}\x1b`;
    const expected = [
      { keys: 'ab\x1b[A' },
      { paste: 'one\rtwo\r' },
      { keys: 'c\r' },
      { paste: '' },
      { paste: 'x\x1b[31m' },
      { keys: '\x1b' },
    ];
    expect(split([text])).toEqual(expected);
    expect(split([...text])).toEqual(expected);
    const cuts = fc.array(fc.nat(text.length), { maxLength: 8 }).map(list => [0, ...list.sort((a, b) => a - b)]);
    fc.assert(
      fc.property(cuts, list => {
        expect(split(list.map((at, i) => text.slice(at, list[i + 1])))).toEqual(expected);
      }),
    );
  });

  it('holds back a partial marker and releases it on flush', () => {
    const splitter = createPasteSplitter();
    expect(splitter.push('a\x1b[2')).toEqual([{ keys: 'a' }]);
    expect(splitter.hasPartialMarker).toBe(true);
    expect(splitter.flush()).toEqual([{ keys: '\x1b[2' }]);
    expect(splitter.hasPartialMarker).toBe(false);
    expect(splitter.push('\x1b[200~half')).toEqual([]);
    expect(splitter.flush()).toEqual([]);
    expect(splitter.push('\x1b[201~')).toEqual([{ paste: 'half' }]);
  });
});

describe('encodePaste', () => {
  it('replaces newlines and tabs with symbols and removes control characters', () =>
    expect(encodePaste('a\r\n\tb\rc\x1b[31m\x07')).toBe('a⏎⇥b⏎c[31m'));

  it('is reversed by decodeLine, including symbols that the text itself contains', () => {
    const text = fc.string({ unit: fc.constantFrom('a', ' ', '\n', '\t', '⏎', '⇥', 'é', '😀') });
    fc.assert(fc.property(text, original => decodeLine(encodePaste(original)) === original));
  });
});
