/** Pages are read back while requests run: nobody's pass is disturbed, and nothing that is read changes meanwhile. */
import { expect, it } from 'vitest';
import { decodeLeaves } from '../src/api/decode-leaves.ts';
import { type Generations, openGenerations } from './support/generations.ts';
import { words } from './support/lifetimes.ts';

const greedy = { temperature: 0, ignoreEos: true, maxTokens: 4 };
const text = words.repeat(2).slice(0, 500);

/** Every pass lets others run between its planning and its end, however fast the machine is. */
function yieldInPasses({ engine }: Generations): void {
  const { device } = engine;
  device.ensureMemory = () => new Promise(resolve => setImmediate(resolve));
}

it.each([false, true])(
  'a prompt is read, and its pages are read back meanwhile, samples on the device: %s',
  async samples => {
    const on = await openGenerations({ prefillChunk: 8, samples });
    const expected = (await on.ask(text, { ...greedy, tenant: 'alone' }).result()).ids;
    yieldInPasses(on);
    const ids = on.engine.tokenizer.encode(text);
    let isDone = false;
    const answer = on
      .ask(text, greedy)
      .result()
      .finally(() => {
        isDone = true;
      });
    const found = new Set<number>();
    let calls = 0;
    for (; !isDone; calls++) {
      for await (const { page } of decodeLeaves(on, ids, {})) found.add(page);
      await new Promise(resolve => setImmediate(resolve));
    }
    expect((await answer).ids).toEqual(expected);
    expect(calls).toBeGreaterThan(9);
    expect(found.size).toBeGreaterThan(16);
    expect(on.cache.stats.sharedLeaves).toBe(0);
  },
);
