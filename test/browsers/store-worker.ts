/** Runs in a Worker of the browser: stores in the site's storage, which remote-store.ts calls. Bytes travel as text. */
import type { LeafKey } from '../../src/store/leaf-key.ts';
import type { LeafStore } from '../../src/store/leaf-store.ts';
import { openTier } from '../../src/store/open-tiers.ts';
import type { RecordKind } from '../../src/store/record.ts';

export interface TextName {
  kind: RecordKind;
  key: string;
}
export interface TextRecord extends TextName {
  payload: string;
}

const toBytes = (text: string) => Uint8Array.from(text, char => char.charCodeAt(0));
const toText = (bytes: Uint8Array) => Array.from(bytes, byte => String.fromCharCode(byte)).join('');
const toName = ({ kind, key }: TextName) => ({ kind, key: toBytes(key) as LeafKey });

const stores: LeafStore[] = [];
const reads: AsyncGenerator<Uint8Array, void>[] = [];

const methods = {
  open: async (model: string, capacity: number) =>
    stores.push(await openTier({ type: 'opfs', capacity }, { model })) - 1,
  put: (store: number, records: readonly TextRecord[]) =>
    stores[store].put(records.map(record => ({ ...toName(record), payload: toBytes(record.payload) }))),
  get: async (store: number, chain: readonly TextName[]) => reads.push(stores[store].get(chain.map(toName))) - 1,
  async next(read: number) {
    const { value } = await reads[read].next();
    return value ? toText(value) : undefined;
  },
  async end(read: number) {
    await reads[read].return();
  },
  has: (store: number, chain: readonly TextName[]) => stores[store].has(chain.map(toName)),
  delete: (store: number, names: readonly TextName[]) => stores[store].delete(names.map(toName)),
  flush: (store: number) => stores[store].flush(),
  close: (store: number) => stores[store].close(),
  stats: async (store: number) => ({ ...stores[store].stats }),
};
export type StoreMethods = typeof methods;

addEventListener('message', async ({ data: { method, args } }) => {
  const call = methods[method as keyof StoreMethods] as (...args: unknown[]) => Promise<unknown>;
  const answer = await call(...args).then(
    value => ({ value }),
    ({ name, message }: Error) => ({ error: { name, message } }),
  );
  postMessage(answer);
});
