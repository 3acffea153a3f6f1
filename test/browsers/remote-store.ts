/** A store in a Worker of a page of Chromium, as a store of this process: the suite of all stores runs on it. */
import type { Page } from 'playwright-core';
import type { LeafStore, RecordName, StoreStats } from '../../src/store/leaf-store.ts';
import type { StoreMethods, TextName } from './store-worker.ts';

const toText = (bytes: Uint8Array) => Buffer.from(bytes).toString('latin1');
const toName = ({ kind, key }: RecordName): TextName => ({ kind, key: toText(key) });

/** Calls a method of the page's Worker, one call at a time. What it throws has the name and message of its error. */
async function call<Name extends keyof StoreMethods>(
  page: Page,
  method: Name,
  ...args: Parameters<StoreMethods[Name]>
): Promise<Awaited<ReturnType<StoreMethods[Name]>>> {
  const { value, error } = await page.evaluate(
    ([method, args]) =>
      (
        globalThis as unknown as { cases: { callStore(method: string, args: unknown): Promise<StoreAnswer> } }
      ).cases.callStore(method, args),
    [method, args] as const,
  );
  if (error) throw Object.assign(new Error(error.message), { name: error.name });
  return value as Awaited<ReturnType<StoreMethods[Name]>>;
}

export interface StoreAnswer {
  value?: unknown;
  error?: { name: string; message: string };
}

export async function openRemoteStore(page: Page, model: string, capacity: number): Promise<LeafStore> {
  const store = await call(page, 'open', model, capacity);
  let stats = await call(page, 'stats', store);
  /** Calls, and takes the counters along: here they are read without waiting. */
  const counted = async <T>(result: Promise<T>): Promise<T> => {
    const value = await result;
    stats = await call(page, 'stats', store);
    return value;
  };
  return {
    name: 'opfs',
    get stats(): StoreStats {
      return stats;
    },
    put: records =>
      counted(
        call(
          page,
          'put',
          store,
          records.map(r => ({ ...toName(r), payload: toText(r.payload) })),
        ),
      ),
    async *get(chain) {
      const read = await call(page, 'get', store, chain.map(toName));
      try {
        for (;;) {
          const payload = await counted(call(page, 'next', read));
          if (payload === undefined) return;
          yield Buffer.from(payload, 'latin1');
        }
      } finally {
        await counted(call(page, 'end', read));
      }
    },
    has: chain => call(page, 'has', store, chain.map(toName)),
    delete: names => counted(call(page, 'delete', store, names.map(toName))),
    flush: () => counted(call(page, 'flush', store)),
    close: () => counted(call(page, 'close', store)),
  };
}
