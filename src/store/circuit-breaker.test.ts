import { expect, it } from 'vitest';
import { createCircuitBreaker } from './circuit-breaker.ts';

it('pauses after three failures in a row, lets one call through, and doubles the pause', () => {
  let time = 0;
  const breaker = createCircuitBreaker(() => time);
  breaker.noteFailure();
  breaker.noteFailure();
  breaker.noteSuccess();
  for (let i = 0; i < 3; i++) {
    expect(breaker.allows()).toBe(true);
    breaker.noteFailure();
  }
  expect(breaker.allows()).toBe(false);
  time += 250;
  expect(breaker.allows()).toBe(true);
  expect(breaker.allows()).toBe(false);
  breaker.noteFailure();
  time += 250;
  expect(breaker.allows()).toBe(false);
  time += 250;
  expect(breaker.allows()).toBe(true);
  breaker.noteSuccess();
  expect([breaker.allows(), breaker.allows()]).toEqual([true, true]);
});
