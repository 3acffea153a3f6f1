/** Calibration threads, from dist/: a thread that stops gives one typed error, never a hang or an unhandled rejection. */
import type { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { createWorkers } from '../src/calibrate/workers.ts';

const built = new URL('../dist/calibrate/workers.js', import.meta.url).href;
const workersModule: { createWorkers: typeof createWorkers } = await import(built);

async function create(count: number) {
  const workers = await workersModule.createWorkers(count);
  // Node reports new threads a little later.
  await new Promise(setImmediate);
  return workers;
}

const threads: Worker[] = [];
const seen = (worker: Worker) => threads.push(worker);
beforeEach(() => {
  process.on('worker', seen);
});
afterEach(() => {
  process.off('worker', seen);
  threads.length = 0;
});

/** Fails in the task itself, after the thread has started. */
const wrong = { shape: undefined } as never;
const exit = (worker: Worker) => new Promise(resolve => worker.once('exit', resolve));

it('a thread that ends fails all tasks and ends the other threads', async () => {
  const workers = await create(2);
  const ends = Promise.all(threads.map(exit));
  const running = [1, 2, 3, 4].map(() => workers.run('learn', wrong, []));
  void threads[0].terminate();
  const results = await Promise.allSettled(running);
  const reasons = results.map(result => (result as PromiseRejectedResult).reason as Error);
  expect(reasons.map(({ name }) => name)).toEqual(Array(4).fill('DeviceError'));
  expect(reasons[0].message).toMatch(/^A calibration thread stopped \(exit code \d\)\. Run calibration again/);
  await ends;
  await expect(workers.run('learn', wrong, [])).rejects.toBe(reasons[0]);
  await workers.dispose();
  await workers.dispose();
});

it('two errors of one thread are reported as one', async () => {
  const workers = await create(2);
  threads[1].emit('error', new Error('first'));
  threads[1].emit('error', new Error('second'));
  await expect(workers.run('learn', wrong, [])).rejects.toThrow(/thread stopped \(first\)/);
  await workers.dispose();
});

it('a task that throws gives a typed error, and other tasks still run', async () => {
  const workers = await create(1);
  for (let n = 0; n < 2; n++) {
    const error = await workers.run('learn', wrong, []).catch(error => error);
    expect([error.name, error.message]).toEqual([
      'DeviceError',
      expect.stringMatching(/^A calibration task failed \(/),
    ]);
  }
  await workers.dispose();
  await expect(workers.run('learn', wrong, [])).rejects.toThrow(/disposed/);
});
