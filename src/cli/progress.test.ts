import { describe, expect, test } from 'vitest';
import { createPhaseBars, createProgress, type ProgressOptions } from './progress.ts';

/** A progress bar with a recording stream and a manual clock. */
function stage(options: Partial<ProgressOptions>, isTTY: boolean, columns = 80) {
  const state = { text: '', time: 0 };
  const write = (text: string) => {
    state.text += text;
  };
  const stream = { isTTY, columns, write };
  const progress = createProgress({ title: 'tiny', unit: 'B', stream, now: () => state.time, ...options });
  const at = (time: number, done: number, total?: number) => {
    state.time = time;
    progress.update(done, total);
  };
  /** What a terminal would show on its last line. */
  const line = () =>
    state.text
      .split(/[\r\n]/)
      .at(-1)
      ?.replace('\x1b[2K', '') ?? '';
  return { state, progress, at, line };
}

describe('on a terminal', () => {
  test('shows bar, percentage, size, rate and time left', () => {
    const { at, line } = stage({ total: 200e6 }, true);
    at(0, 0);
    at(2000, 50e6);
    expect(line()).toMatch(/^tiny \[#+-+\] {2}25% 50\.0 MB \/ 200 MB, 25\.0 MB\/s, 0:06 left$/);
    at(8000, 200e6);
    expect(line()).toMatch(/\[#+\] 100% 200 MB \/ 200 MB, 25\.0 MB\/s$/);
  });

  test('bytes of an earlier run do not count toward the rate', () => {
    const { at, line } = stage({ total: 200e6 }, true);
    at(0, 100e6);
    at(1000, 101e6);
    expect(line()).toContain('1.00 MB/s');
    at(2000, 0);
    expect(line()).not.toContain('/s');
  });

  test('a pause announced by a note does not lower the rate', () => {
    const { at, progress, line } = stage({ total: 200e6 }, true);
    at(0, 0);
    progress.note('waiting');
    at(60_000, 0);
    at(61_000, 1e6);
    expect(line()).toContain('1.00 MB/s');
  });

  test('is never wider than the terminal and redraws at most ten times per second', () => {
    for (const columns of [1, 10, 30, 60, 200]) {
      const { at, line, state } = stage({ title: 'long'.repeat(20), total: 1e9 }, true, columns);
      for (let time = 0; time < 1000; time += 10) at(time, time * 1000);
      expect(line().length).toBeLessThan(columns);
      expect(state.text.split('\r').length).toBeLessThanOrEqual(11);
    }
  });

  test('prints notes above the bar and removes the bar at the end', () => {
    const { at, progress, state, line } = stage({ total: 10, unit: 'tokens' }, true);
    at(0, 5);
    progress.note('wait');
    expect(state.text).toContain('\x1b[2Kwait\ntiny [');
    progress.end('done');
    progress.end();
    expect(state.text.endsWith('\x1b[2Kdone\n')).toBe(true);
    expect(line()).toBe('');
  });

  test('shows seconds per item if they are slow', () => {
    const { at, line } = stage({ total: 30, unit: 'items' }, true);
    at(0, 0);
    at(25_000, 2);
    expect(line()).toMatch(/ {3}6% 2 \/ 30 items, 13 s each, 5:50 left$/);
    at(30_000, 22);
    expect(line()).toMatch(/22 \/ 30 items, \d\.\d items\/s, /);
  });

  test('shows a steady rate of items that are done several at a time', () => {
    const { at, line } = stage({ total: 48, unit: 'items' }, true);
    at(0, 0);
    for (let done = 1; done <= 33; done++) at(10_000 * Math.ceil(done / 8), done);
    expect(line()).toMatch(/33 \/ 48 items, 0\.[5-9] items\/s, /);
  });

  test('shows a count if there is no total', () => {
    const { at, line } = stage({ unit: 'tokens' }, true);
    at(0, 0);
    at(1000, 12);
    expect(line()).toBe('tiny 12 tokens, 12 tokens/s');
  });
});

test('elsewhere prints a line every ten seconds, without control codes', () => {
  const { at, progress, state } = stage({}, false);
  for (let time = 0; time <= 25_000; time += 100) at(time, time * 1000, 3600e6);
  progress.end('done');
  expect(state.text.split('\n')).toEqual([
    'tiny 0% 0 B / 3.60 GB',
    'tiny 0% 10.0 MB / 3.60 GB, 1.00 MB/s, 59:50 left',
    'tiny 0% 20.0 MB / 3.60 GB, 1.00 MB/s, 59:40 left',
    'done',
    '',
  ]);
});

test('prints nothing if quiet', () => {
  const { at, progress, state } = stage({ quiet: true }, true);
  at(0, 1, 2);
  progress.note('x');
  progress.end('y');
  expect(state.text).toBe('');
});

describe('the time left', () => {
  test('is shown after a few seconds of work', () => {
    const { at, line } = stage({ total: 100, unit: 'tokens' }, true);
    at(0, 0);
    at(1000, 1);
    expect(line()).not.toContain('left');
    at(2000, 2);
    expect(line()).toContain('1:38 left');
  });

  test('is steady if phases alternate, some ten times slower', () => {
    const { at, line, state } = stage({ total: 100_000, unit: 'tokens' }, true);
    const seen: number[] = [];
    let done = 0;
    for (let turn = 0; turn < 20; turn++) {
      const pace = turn % 2 ? 10 : 100;
      for (let i = 0; i < 10; i++) {
        done += pace;
        at(state.time + 1000, done);
      }
      const [, minutes, seconds] = line().match(/(\d+):(\d+) left/) ?? [];
      if (turn >= 6) seen.push((60 * Number(minutes) + Number(seconds)) * 55 + done);
    }
    // The estimated total at the mean rate of 55 per second.
    for (const total of seen) expect(Math.abs(total / 100_000 - 1)).toBeLessThan(0.25);
  });

  test('follows a lasting change of the rate', () => {
    const { at, line, state } = stage({ total: 10_000, unit: 'tokens' }, true);
    for (let i = 1; i <= 20; i++) at(i * 1000, i * 10);
    for (let i = 1; i <= 60; i++) at(state.time + 1000, 200 + i * 50);
    const [, minutes, seconds] = line().match(/(\d+):(\d+) left/) ?? [];
    expect(60 * Number(minutes) + Number(seconds)).toBeLessThan((1.2 * 6800) / 50);
  });
});

test('work in phases has one bar after the other', () => {
  const lines: string[] = [];
  const bars = createPhaseBars((title: string) => ({ title, unit: 'B', stream: { write: line => lines.push(line) } }));
  bars.update('hashing', 1, 4);
  bars.update('hashing', 2, 4);
  bars.update('loading', 1, 2);
  bars.end();
  expect(lines.map(line => line.slice(0, 11))).toEqual(['hashing 25%', 'loading 50%']);
});
