import { setTimeout } from 'node:timers/promises';
import { afterEach, expect, it } from 'vitest';
import { runInterruptible } from './model-command.ts';

afterEach(() => {
  process.exitCode = undefined;
});

it('Ctrl-C ends work without an error, also where a timer of Node waits', async () => {
  await runInterruptible(async signal => {
    process.emit('SIGINT');
    signal.throwIfAborted();
  });
  await runInterruptible(async signal => {
    const wait = setTimeout(60_000, undefined, { signal });
    process.emit('SIGINT');
    await wait;
  });
  expect(process.exitCode).toBe(130);
});

it('other errors are reported', async () => {
  const fail = async () => {
    throw new Error('broken');
  };
  await expect(runInterruptible(fail)).rejects.toThrow('broken');
});
