/** Records whose payload follows from their number, for processes that must agree on them. */
import type { LeafKey } from '../../src/store/leaf-key.ts';
import type { RecordName } from '../../src/store/leaf-store.ts';
import type { CacheRecord } from '../../src/store/record.ts';

export function testName(number: number): RecordName {
  const key = new Uint8Array(32) as LeafKey;
  new DataView(key.buffer).setUint32(0, number);
  return { kind: 'leaf', key };
}

export function testRecord(number: number): CacheRecord {
  const payload = new Uint8Array(16 * (1 + ((number * 7919) % 600)));
  for (let i = 0; i < payload.length; i++) payload[i] = (i * (number + 7)) >> 3;
  return { ...testName(number), payload };
}
