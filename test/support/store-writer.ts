/** A process that writes to a disk store until it is killed. Prints the number of records that are flushed. */
import { writeSync } from 'node:fs';
import { openDiskStore } from '../../src/store/disk-store.ts';
import { testRecord } from './store-records.ts';

const [path, firstText] = process.argv.slice(2);
const store = await openDiskStore({ path, model: 'ab'.repeat(32), capacity: 1e9, segmentBytes: 100_000 });
writeSync(1, 'open\n');
for (let next = Number(firstText); ; ) {
  const count = 1 + (next % 5);
  await store.put(Array.from({ length: count }, (_, i) => testRecord(next + i)));
  next += count;
  if (next % 3 === 0 && (await store.flush())) writeSync(1, `${next}\n`);
}
