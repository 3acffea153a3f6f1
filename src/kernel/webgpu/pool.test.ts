import { expect, it } from 'vitest';
import type { Gpu } from './gpu.ts';
import { Pool } from './pool.ts';

it('a lost device ends a read with one error, however many buffers a block has', async () => {
  const lost = async () => {
    throw new Error('lost');
  };
  const gpu = { allocateBuffer: async (size: number) => ({ size }), read: lost, clear() {}, destroy() {} };
  const pool = new Pool(gpu as unknown as Gpu, 256, [0, 128], 2 ** 20);
  const block = pool.allocate();
  await pool.grow();
  await expect(pool.read(block)).rejects.toThrow('lost');
  // What nobody awaits would be reported now.
  await new Promise(resolve => setTimeout(resolve, 10));
});
