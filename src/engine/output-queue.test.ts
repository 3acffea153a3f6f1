import { expect, it } from 'vitest';
import { createOutputQueue } from './output-queue.ts';

const take = async <T>(values: AsyncIterator<T>, count: number) => {
  const taken: T[] = [];
  for (let i = 0; i < count; i++) taken.push((await values.next()).value);
  return taken;
};

it('delivers values in order, before and after they are awaited', async () => {
  const queue = createOutputQueue<number>(() => {});
  queue.push(1);
  queue.push(2);
  const reader = queue[Symbol.asyncIterator]();
  expect(await take(reader, 2)).toEqual([1, 2]);
  const pending = reader.next();
  queue.push(3);
  expect(await pending).toEqual({ done: false, value: 3 });
  queue.end();
  expect((await reader.next()).done).toBe(true);
});

it('is full when its reader has fallen behind, until half of it was read', async () => {
  let drained = 0;
  const queue = createOutputQueue<number>(() => drained++);
  const reader = queue[Symbol.asyncIterator]();
  let pushed = 0;
  while (!queue.isFull) queue.push(pushed++);
  expect(pushed).toBeGreaterThan(8);
  await take(reader, Math.ceil(pushed / 2) - 1);
  expect([queue.isFull, drained]).toEqual([true, 0]);
  await take(reader, 1);
  expect([queue.isFull, drained]).toEqual([false, 1]);
});

it('gives its reader what is left, then the error', async () => {
  const queue = createOutputQueue<number>(() => {});
  queue.push(1);
  queue.end(new Error('lost'));
  const reader = queue[Symbol.asyncIterator]();
  expect(await take(reader, 1)).toEqual([1]);
  await expect(reader.next()).rejects.toThrow('lost');
});
