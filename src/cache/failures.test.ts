/** An allocation or a copy that fails, anywhere: nothing leaks, what was there stays as it was, and the operation can be repeated. */
import { describe, expect, it } from 'vitest';
import {
  appendTokens,
  createObservedDevice,
  expectContents,
  LEAF,
  numbers,
  PAUSE,
  TRACKED_LEAF,
  tinyShape,
} from '../../test/support/tiny-cache.ts';
import { CapacityError } from '../util/errors.ts';
import { createKvCache, type KvCacheOptions } from './kv-cache.ts';
import type { Sequence } from './sequence.ts';

const alice = { name: 'alice' };

/** Bytes between the capacities that are tried; all blocks are multiples of 8. */
const STEP = process.env.KVASIR_LONG === '1' ? 8 : 40;

type Options = Pick<KvCacheOptions, 'recent' | 'overflow' | 'capacity'> & { sinks: number; tracksErrors: boolean };

/** A conversation, forks and edits of it, and other prompts. `attempt` runs each step that allocates. */
function runScenario(options: Options, failAt: number, attempt: <T>(step: () => T) => T | undefined) {
  const { device, failAfter } = createObservedDevice();
  const { sinks, tracksErrors, ...rest } = options;
  const leaf = tracksErrors ? TRACKED_LEAF : LEAF;
  const cache = createKvCache({ device, shape: tinyShape(sinks), leaf, context: 30, ...rest });
  const texts = new Map<Sequence, number[]>();
  failAfter(failAt);

  const checkAll = () => {
    for (const [sequence, text] of texts) expectContents(sequence, text);
    const { used, capacity } = cache.stats;
    if (used !== device.allocatedBytes || used > capacity) expect([used, capacity]).toBe([device.allocatedBytes, used]);
  };
  const run = <T>(step: () => T): T | undefined => {
    const result = attempt(() => {
      try {
        return step();
      } catch (error) {
        checkAll();
        throw error;
      }
    });
    checkAll();
    return result;
  };
  const add = (sequence: Sequence | undefined) => {
    if (sequence) texts.set(sequence, [...sequence.ids]);
    return sequence;
  };
  const open = (prompt: readonly number[], owner?: object) => add(run(() => cache.open(PAUSE, prompt, '', owner)));
  const fork = (sequence?: Sequence) => sequence && add(run(() => sequence.fork()));
  const append = (sequence: Sequence | undefined, tokens: readonly number[]) => {
    if (!sequence) return;
    const chunk = tokens.slice(0, sequence.maxChunk);
    run(() => {
      appendTokens(device, sequence, chunk);
      texts.get(sequence)?.push(...chunk);
    });
  };
  const crop = (sequence: Sequence | undefined, length: number) => {
    // It never allocates, so it never fails.
    if (sequence) texts.get(sequence)!.length = sequence.crop(length);
    checkAll();
  };
  const end = (sequence: Sequence | undefined, finish: (sequence: Sequence) => void) => {
    if (!sequence) return;
    texts.delete(sequence);
    finish(sequence);
    checkAll();
  };

  const first = open(numbers(20));
  append(first, numbers(3));
  const early = fork(first);
  append(early, numbers(10, 100));
  append(first, numbers(10, 3));
  const late = fork(first);
  append(late, numbers(9, 200));
  crop(late, 12);
  append(late, numbers(9, 300));
  end(first, sequence => cache.keep(sequence, alice));
  const edited = open([...numbers(12), 400, 401], alice);
  append(edited, [400, 401]);
  crop(edited, 1);
  append(edited, numbers(12, 500));
  const again = open(numbers(20));
  append(again, numbers(11, 600));
  append(again, numbers(4, 700));
  for (const sequence of [...texts.keys()]) end(sequence, one => one.dispose());
  cache.dispose();
  expect([cache.stats.used, device.allocatedBytes]).toEqual([0, 0]);
}

const cases = [
  { sinks: 0, recent: 0, overflow: 'error', tracksErrors: false },
  { sinks: 2, recent: 0, overflow: 'slide', tracksErrors: true },
  { sinks: 6, recent: 0, overflow: 'error', tracksErrors: false },
  { sinks: 6, recent: 3, overflow: 'error', tracksErrors: true },
  { sinks: 2, recent: 3, overflow: 'slide', tracksErrors: false },
] as const;

describe.each(cases)('with $sinks sinks, recent $recent, overflow $overflow', settings => {
  it('the device fails at any allocation or copy', () => {
    let failures = 0;
    for (let n = 1; failures === n - 1; n++) {
      runScenario(settings, n, step => {
        try {
          return step();
        } catch (error) {
          expect(error).toEqual(new Error('the device failed'));
          failures++;
          return step();
        }
      });
    }
    expect(failures).toBeGreaterThan(15);
  });

  it('the pool is full at any point', () => {
    const failures: number[] = [];
    for (let capacity = 0; failures.at(-1) !== 0; capacity += STEP) {
      let count = 0;
      runScenario({ ...settings, tracksErrors: false, capacity }, Number.POSITIVE_INFINITY, step => {
        try {
          return step();
        } catch (error) {
          expect(error).toBeInstanceOf(CapacityError);
          count++;
          return undefined;
        }
      });
      failures.push(count);
    }
    expect(failures.filter(count => count > 0).length).toBeGreaterThan(10);
  });
});
