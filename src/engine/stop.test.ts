import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cpuTime } from '../../test/support/cpu-time.ts';
import { InputError } from '../util/errors.ts';
import { createStopMatcher } from './stop.ts';

function run(stops: string[], pieces: string[]) {
  const matcher = createStopMatcher(stops);
  const shown: string[] = [];
  for (const piece of pieces) {
    const { text, stop } = matcher.push(piece);
    shown.push(text);
    if (stop !== undefined) return { shown, stop };
  }
  shown.push(matcher.end());
  return { shown, stop: undefined };
}

/** The definition: the first stop string to be completed; the longest one if several end together. */
function slow(stops: string[], text: string) {
  for (let end = 1; end <= text.length; end++) {
    const ended = stops.filter(stop => text.slice(0, end).endsWith(stop)).sort((a, b) => b.length - a.length)[0];
    if (ended !== undefined) return { shown: text.slice(0, end - ended.length), stop: ended };
  }
  return { shown: text, stop: undefined };
}

describe('stop strings', () => {
  it('are found across pieces, and never emitted', () => {
    expect(run(['</end>'], ['Hello <', '/e', 'nd', '> more'])).toEqual({
      shown: ['Hello ', '', '', ''],
      stop: '</end>',
    });
  });

  it('text that was held back is emitted if it is not a stop string', () => {
    expect(run(['</end>'], ['a</e', 'x', '</'])).toEqual({ shown: ['a', '</ex', '', '</'], stop: undefined });
  });

  it('only a possible start of a stop string is held back', () => {
    expect(run(['aab'], ['aaa'])).toEqual({ shown: ['a', 'aa'], stop: undefined });
  });

  it('nothing is emitted after a stop string', () => {
    const matcher = createStopMatcher(['.']);
    expect(matcher.push('a.b')).toEqual({ text: 'a', stop: '.' });
    expect(matcher.push('c')).toEqual({ text: '' });
    expect(matcher.end()).toBe('');
  });

  it('can be an empty list', () => {
    expect(run([], ['a', 'b']).shown.join('')).toBe('ab');
  });

  it('cannot be empty strings', () => {
    expect(() => createStopMatcher(['a', ''])).toThrow(InputError);
  });

  it('match the definition, however the text is split', () => {
    const word = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 5 });
    const pieces = fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'c'), maxLength: 4 }), { maxLength: 20 });
    fc.assert(
      fc.property(fc.array(word, { maxLength: 3 }), pieces, (stops, pieces) => {
        const { shown, stop } = run(stops, pieces);
        expect({ shown: shown.join(''), stop }).toEqual(slow(stops, pieces.join('')));
      }),
      { numRuns: 2000 },
    );
  });

  it('take linear time on adversarial stop strings', () => {
    const started = cpuTime();
    const matcher = createStopMatcher([`${'a'.repeat(50_000)}b`]);
    for (let i = 0; i < 100; i++) matcher.push('a'.repeat(1000));
    expect(cpuTime() - started).toBeLessThan(2000);
  });
});
