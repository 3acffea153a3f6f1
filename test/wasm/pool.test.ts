/** A thread pool whose kernel traps or whose worker ends: a typed error, never a hang. */
import type { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DeviceError, loadModel } from '../../src/index.ts';
import { codeOf, type Expr, type I32, i32, type Local } from '../../src/kernel/wasm/emit.ts';
import { Kernel, moduleBytes } from '../../src/kernel/wasm/module.ts';
import { createPool, type Pool } from '../../src/kernel/wasm/pool.ts';
import { ACTIVE_WORKERS, CONTROL_WORDS } from '../../src/kernel/wasm/pool-workers.ts';
import { chunked, task } from '../../src/kernel/wasm/task.ts';
import { writeGguf } from '../support/gguf-writer.ts';
import { tinyModel } from '../support/tiny-model.ts';

const CONTROL = 64;
/** Address of a counter that kernels use to count and to wait for each other. */
const PLACE = 4096;
const limits = { maxPages: 4, shared: true };

const atomicLoad = (at: I32): Expr<'i32'> => ({ type: 'i32', code: [...codeOf(at), 0xfe, 0x10, 2, 0] });
const atomicAdd = (at: I32, by: number) => [...codeOf(at), ...codeOf(by), 0xfe, 0x1e, 2, 0, 0x1a];
const unreachable = [0x00];

const signatureOf = (name: string) => chunked(name, 'place');

function kernel(name: string, body: (k: Kernel, place: Local<'i32'>, thread: Local<'i32'>) => void): Kernel {
  const k = new Kernel(signatureOf(name));
  body(k, k.params.place, k.params.thread);
  return k;
}

const run = (pool: Pool, name: string, chunks: number, place = PLACE) =>
  pool.runAll([task(signatureOf(name), chunks, { place })]);

/** `role` runs on a worker after signalling the main thread, which waits for it in a chunk of its own. */
const onWorker = (name: string, role: (k: Kernel) => void) =>
  kernel(name, (k, place, thread) =>
    k.if(
      thread,
      () => {
        k.do(atomicAdd(place, 1));
        role(k);
      },
      () => k.while(i32.eqz(atomicLoad(place)), () => {}),
    ),
  );

const modules = () =>
  moduleBytes(
    [
      kernel('count', (k, place) => k.do(atomicAdd(place, 1))),
      kernel('trap', k => k.do(unreachable)),
      onWorker('trapOnWorker', k => k.do(unreachable)),
      // The main thread traps while a worker still has chunks to claim.
      kernel('trapOnMain', (k, place, thread) =>
        k.if(
          thread,
          () => k.do(atomicAdd(place, 1)),
          () => {
            k.while(i32.eqz(atomicLoad(place)), () => {});
            k.do(unreachable);
          },
        ),
      ),
      kernel('stay', (k, _, thread) => k.if(thread, () => k.while(1, () => {}))),
    ],
    limits,
  );

const workers: Worker[] = [];
const seen = (worker: Worker) => workers.push(worker);
const pools: Pool[] = [];
beforeEach(() => {
  process.on('worker', seen);
});
afterEach(async () => {
  process.off('worker', seen);
  workers.length = 0;
  await Promise.all(pools.splice(0).map(pool => pool.dispose()));
});

async function open(threads: number, stallSeconds?: number) {
  const memory = new WebAssembly.Memory({ initial: 1, maximum: limits.maxPages, shared: true });
  const pool = await createPool(memory, CONTROL, threads, stallSeconds);
  pools.push(pool);
  await pool.load(modules());
  return { pool, memory, place: new Int32Array(memory.buffer, PLACE, 1) };
}

const exited = (worker: Worker) => new Promise(resolve => worker.once('exit', resolve));

function errorOf(run: () => void): Error {
  try {
    run();
  } catch (error) {
    return error as Error;
  }
  throw new Error('nothing was thrown');
}

/** Every later job fails at once with the same error, and the pool can be disposed, twice. */
async function expectFailed(pool: Pool, error: Error) {
  expect(error).toBeInstanceOf(DeviceError);
  expect(error.message).toMatch(/\. Dispose the model and load it again\.$/);
  const start = performance.now();
  expect(errorOf(() => run(pool, 'count', 8))).toBe(error);
  expect(errorOf(() => run(pool, 'count', 1))).toBe(error);
  await expect(pool.load(modules())).rejects.toBe(error);
  await Promise.all([pool.dispose(), pool.dispose()]);
  await pool.dispose();
  expect(performance.now() - start).toBeLessThan(1000);
}

describe('a pool of three threads', () => {
  it('runs every chunk once', async () => {
    const { pool, place } = await open(3);
    for (let i = 0; i < 100; i++) run(pool, 'count', 17);
    pool.runAll([3, 1, 5].map(chunks => task(signatureOf('count'), chunks, { place: PLACE })));
    expect(place[0]).toBe(1709);
  });

  it('fails when a worker ends between jobs', async () => {
    const { pool } = await open(3);
    run(pool, 'count', 8);
    const gone = exited(workers[1]);
    await workers[1].terminate();
    await gone;
    const error = errorOf(() => run(pool, 'count', 8));
    expect(error.message).toMatch(/^A worker thread of the wasm device stopped \(exit code 1\)/);
    await expectFailed(pool, error);
  });

  it('fails when a worker ends during a job, after a timeout without progress', async () => {
    const { pool, memory } = await open(3, 1);
    const control = new Int32Array(memory.buffer, CONTROL, CONTROL_WORDS);
    // The main thread runs only kernels here. Converting an argument to a number is the way to run code meanwhile.
    let asked = 0;
    const place = {
      valueOf() {
        if (++asked === 2) {
          while (Atomics.load(control, ACTIVE_WORKERS) !== 2);
          for (const worker of workers) void worker.terminate();
        }
        return PLACE;
      },
    };
    const error = errorOf(() => run(pool, 'stay', 3, place as unknown as number));
    expect(error.message).toMatch(/^A worker thread of the wasm device stopped \(no progress in 1 seconds\)/);
    await expectFailed(pool, error);
  });

  it('fails when a module is loaded after a worker has ended', async () => {
    const { pool } = await open(3, 1);
    void workers[0].terminate();
    await expectFailed(pool, await pool.load(modules()).catch(error => error));
  });

  it('fails when a kernel traps on a worker', async () => {
    const { pool } = await open(3);
    const error = errorOf(() => run(pool, 'trapOnWorker', 8));
    expect(error.message).toMatch(/^A worker thread of the wasm device stopped \(unreachable\)/);
    await expectFailed(pool, error);
  });

  it('fails when a kernel traps on the main thread, after all workers have left the job', async () => {
    const { pool, memory, place } = await open(3);
    const error = errorOf(() => run(pool, 'trapOnMain', 2 ** 29));
    expect(error.message).toMatch(/^Kernel "trapOnMain" of the wasm device failed \(unreachable\)/);
    expect(error.cause).toBeInstanceOf(WebAssembly.RuntimeError);
    expect(new Int32Array(memory.buffer, CONTROL, CONTROL_WORDS)[ACTIVE_WORKERS]).toBe(0);
    const count = place[0];
    await expectFailed(pool, error);
    expect(place[0]).toBe(count);
  });

  it('survives two errors of one worker', async () => {
    const { pool } = await open(3);
    workers[0].emit('error', new Error('first'));
    workers[0].emit('error', new Error('second'));
    const error = errorOf(() => run(pool, 'count', 8));
    expect(error.message).toMatch(/\(first\)/);
    await expectFailed(pool, error);
  });

  it('fails to open when a worker does not start', async () => {
    process.once('worker', worker => void worker.terminate());
    const error = await open(3).catch(error => error);
    expect(error).toBeInstanceOf(DeviceError);
    expect(error.message).toMatch(/did not start \(exit code \d\)\. Use fewer threads\.$/);
  });
});

it('a pool of one thread fails when a kernel traps', async () => {
  const { pool } = await open(1);
  const error = errorOf(() => run(pool, 'trap', 8));
  expect(error.message).toMatch(/^Kernel "trap" of the wasm device failed \(unreachable\)/);
  await expectFailed(pool, error);
});

it.each([1, 2])('a disposed pool of %i threads rejects jobs', async threads => {
  const { pool } = await open(threads);
  await pool.dispose();
  expect(() => run(pool, 'count', 8)).toThrow(DeviceError);
});

it('a model whose worker stopped fails, can be disposed, and can be loaded again', async () => {
  const blob = new Blob([writeGguf(tinyModel({ tied: false }))]);
  const load = () => loadModel(blob, { device: 'wasm', threads: 2 });
  const prompt = 'x'.repeat(40);
  const model = await load();
  const gone = exited(workers[0]);
  await workers[0].terminate();
  await gone;
  for (let n = 0; n < 2; n++)
    await expect(model.complete(prompt, { maxTokens: 4 })).rejects.toThrow(/worker thread of the wasm device stopped/);
  await model.dispose();
  await using again = await load();
  expect((await again.complete(prompt, { maxTokens: 4, ignoreEos: true })).finish).toBe('length');
});
