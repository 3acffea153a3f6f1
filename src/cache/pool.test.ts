import { describe, expect, it } from 'vitest';
import { createObservedDevice } from '../../test/support/tiny-cache.ts';
import { CapacityError } from '../util/errors.ts';
import { createPool, type PoolOptions } from './pool.ts';

function create(options: PoolOptions = {}) {
  const observed = createObservedDevice();
  return { ...observed, pool: createPool(observed.device, options) };
}

describe('a block', () => {
  it('has one holder when it is allocated, and is freed when that one releases it', () => {
    const { pool, device } = create();
    const shared = pool.allocate(100, [0]);
    expect([shared.holders, shared.block.bytes, pool.used, device.allocatedBytes]).toEqual([1, 100, 100, 100]);
    pool.release(shared);
    expect([shared.holders, pool.used, device.allocatedBytes]).toEqual([0, 0, 0]);
  });

  it('lives until its last holder releases it', () => {
    const { pool } = create();
    const shared = pool.allocate(100, [0]);
    expect(pool.retain(shared)).toBe(shared);
    pool.release(shared);
    expect([shared.holders, pool.used]).toEqual([1, 100]);
    pool.release(shared);
    expect(pool.used).toBe(0);
  });

  it('cannot be used once it is freed', () => {
    const { pool } = create();
    const shared = pool.allocate(100, [0]);
    pool.release(shared);
    expect(() => pool.release(shared)).toThrow(/released more often/);
    expect(() => pool.retain(shared)).toThrow(/freed block/);
    expect(pool.used).toBe(0);
  });

  it('is reported when a release leaves one holder: the index may be that one', () => {
    const idle: unknown[] = [];
    const { pool } = create({ onIdle: shared => idle.push(shared) });
    const shared = pool.allocate(100, [0]);
    for (let i = 0; i < 2; i++) pool.retain(shared);
    pool.release(shared);
    expect(idle).toEqual([]);
    pool.release(shared);
    expect(idle).toEqual([shared]);
    pool.release(shared);
    expect(idle).toEqual([shared]);
  });
});

describe('the capacity', () => {
  it('counts blocks and tensors', () => {
    const { pool } = create({ capacity: 100 });
    const tensor = pool.allocateTensor(2, 5);
    const shared = pool.allocate(60, [0]);
    expect([pool.used, pool.capacity]).toEqual([100, 100]);
    expect(() => pool.allocate(1, [0])).toThrow(CapacityError);
    expect(() => pool.allocateTensor(1, 1)).toThrow(CapacityError);
    pool.freeTensor(tensor);
    pool.release(shared);
    expect(pool.used).toBe(0);
  });

  it('has no limit by default', () => {
    expect(create().pool.makeRoom(2 ** 50)).toBe(true);
  });

  it('is refused with a message that says how much is missing and what to do', () => {
    const { pool } = create({ capacity: 4 << 20 });
    pool.allocate(3 << 20, [0]);
    expect(() => pool.allocate(2 << 20, [0])).toThrow(
      /KV cache is full: 3\.00 MiB of 4\.00 MiB are in use, and 2\.00 MiB more are needed\. Raise kvMemory/,
    );
  });

  it('is made by reclaiming what nobody uses, and not more than needed', () => {
    const cached: (() => void)[] = [];
    const { pool } = create({
      capacity: 100,
      reclaim() {
        cached.shift()?.();
        return true;
      },
    });
    for (let i = 0; i < 4; i++) {
      const shared = pool.allocate(25, [0]);
      cached.push(() => pool.release(shared));
    }
    pool.allocate(30, [0]);
    expect([cached.length, pool.used]).toEqual([2, 80]);
    expect(pool.makeRoom(20)).toBe(true);
    expect(cached.length).toBe(2);
  });

  it('is not made by reclaiming everything for what could never fit', () => {
    let reclaimed = 0;
    const { pool } = create({ capacity: 100, reclaim: () => reclaimed++ < 10 });
    expect(pool.makeRoom(101)).toBe(false);
    expect(() => pool.allocate(101, [0])).toThrow(CapacityError);
    expect(reclaimed).toBe(0);
  });

  it('is not used up by an allocation that fails on the device', () => {
    const { pool, device, failAfter } = create({ capacity: 100 });
    for (const allocate of [() => pool.allocate(60, [0]), () => pool.allocateTensor(3, 5)]) {
      failAfter(1);
      expect(allocate).toThrow('the device failed');
    }
    expect([pool.used, device.allocatedBytes]).toEqual([0, 0]);
    expect(pool.makeRoom(100)).toBe(true);
  });
});
