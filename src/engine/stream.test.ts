import { describe, expect, it } from 'vitest';
import type { Cancellation } from './request.ts';
import { createStream, type Result } from './stream.ts';

/** Yields numbers, and counts each in the result, until it is cancelled. */
const countTo = (end: number, log: string[] = []) =>
  async function* (cancellation: Cancellation, result: Result) {
    log.push('start');
    try {
      for (let i = 1; i <= end; i++) {
        await Promise.resolve();
        if (cancellation.aborted) return;
        result.ids.push(i);
        yield i;
      }
      result.finish = 'length';
    } finally {
      log.push('end');
    }
  };

describe('a stream', () => {
  it('yields every value, then the result', async () => {
    const stream = createStream(countTo(3));
    const values: number[] = [];
    for await (const value of stream) values.push(value);
    expect(values).toEqual([1, 2, 3]);
    expect(await stream.next()).toEqual({ done: true, value: await stream.result() });
    expect(await stream.result()).toMatchObject({ ids: [1, 2, 3], finish: 'length', notices: [] });
  });

  it('computes nothing before it is read', async () => {
    const log: string[] = [];
    const stream = createStream(countTo(3, log));
    await new Promise(resolve => setTimeout(resolve));
    expect(log).toEqual([]);
    await stream.next();
    expect(log).toEqual(['start']);
    await stream.return();
  });

  it('result() reads the rest of the stream, and is the same object as partial', async () => {
    const stream = createStream(countTo(4));
    expect(stream.partial.ids).toEqual([]);
    await stream.next();
    await stream.next();
    expect(stream.partial.ids).toEqual([1, 2]);
    const result = await stream.result();
    expect(result.ids).toEqual([1, 2, 3, 4]);
    expect(stream.partial).toBe(result);
  });

  it.each(['break', 'return', 'dispose', 'throw'])(
    'left by %s: ends, runs its cleanup, and reports cancelled',
    async way => {
      const log: string[] = [];
      const stream = createStream(countTo(10, log));
      if (way === 'break') for await (const _ of stream) break;
      else await stream.next();
      if (way === 'return') expect(await stream.return()).toMatchObject({ done: true, value: { finish: 'cancelled' } });
      if (way === 'dispose') await stream[Symbol.asyncDispose]();
      if (way === 'throw') await expect(stream.throw(new Error('left'))).rejects.toThrow('left');
      expect(log).toEqual(['start', 'end']);
      expect(await stream.result()).toMatchObject({ ids: [1], finish: 'cancelled' });
      expect((await stream.next()).done).toBe(true);
    },
  );

  it('left while a read is pending: the read ends early, at the next check of the cancellation', async () => {
    let release = () => {};
    const stream = createStream(async function* (cancellation) {
      for (let pass = 0; pass < 100; pass++) {
        await new Promise<void>(resolve => {
          release = resolve;
        });
        if (cancellation.aborted) return;
      }
      yield 1;
    });
    const read = stream.next();
    const left = stream.return();
    release();
    expect([(await read).done, (await left).done]).toEqual([true, true]);
  });

  it('a signal cancels it between two passes', async () => {
    const stop = new AbortController();
    const stream = createStream(countTo(10), stop.signal);
    await stream.next();
    stop.abort();
    expect(await stream.result()).toMatchObject({ ids: [1], finish: 'cancelled' });
  });

  it('an error rejects the read, and result() afterwards', async () => {
    const failure = new Error('no device');
    const stream = createStream<number>(async function* () {
      yield 1;
      throw failure;
    });
    await stream.next();
    await expect(stream.next()).rejects.toBe(failure);
    await expect(stream.result()).rejects.toBe(failure);
  });
});
