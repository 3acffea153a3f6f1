/** An answer that repeats itself is noticed, one that does not is not. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createLoopDetector } from './loop.ts';

/** How many tokens it takes; undefined: there is no loop. */
function tokensUntilLoop(ids: readonly number[]): number | undefined {
  const isLoop = createLoopDetector();
  const at = ids.findIndex(id => isLoop(id));
  return at < 0 ? undefined : at + 1;
}

const repeated = (run: readonly number[], times: number) => Array.from({ length: times }, () => run).flat();
const run = (length: number) => Array.from({ length }, (_, i) => i);

it('the same 20 tokens three times are a loop, and so are more', () => {
  expect(tokensUntilLoop(repeated(run(20), 3))).toBe(60);
  expect(tokensUntilLoop([900, ...repeated(run(100), 3)])).toBe(301);
  expect(tokensUntilLoop(repeated(run(256), 3))).toBe(768);
});

it('fewer tokens are a loop when they fill as many', () => {
  expect(tokensUntilLoop(repeated([7], 100))).toBe(60);
  expect(tokensUntilLoop(repeated([1, 2, 3, 4, 5, 6, 7], 20))).toBe(60);
});

it('what comes twice, or with a change, is none', () => {
  expect(tokensUntilLoop([...repeated(run(20), 2), ...run(19)])).toBeUndefined();
  expect(tokensUntilLoop([0, 1, 2, 3, 4, 5].flatMap(row => [...run(30), 900 + row]))).toBeUndefined();
});

it('is found whatever comes before it', () => {
  const ids = fc.array(fc.nat(5), { minLength: 1, maxLength: 40 });
  fc.assert(
    fc.property(ids, ids, (before, run) => {
      expect(tokensUntilLoop([...before, ...repeated(run, 70)])).toBeDefined();
    }),
  );
});
