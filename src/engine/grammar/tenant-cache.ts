/** Values that several tenants keep, each for itself: one that needs room takes it from whoever has most. */

/** Longer keys are not kept: they come from requests. */
const MAX_KEY = 2 ** 20;

export interface TenantCache<T> {
  /** The known value of a tenant's key, or a new one. An error is known too: it is thrown again without new work. */
  get(tenant: string, key: string, create: () => T): T;
}

interface Entry<T> {
  value?: T;
  error?: unknown;
}

export function createTenantCache<T>(max: number): TenantCache<T> {
  /** The least recently used come first. */
  const tenants = new Map<string, Map<string, Entry<T>>>();
  let size = 0;

  const makeRoom = () => {
    const [[tenant, largest]] = [...tenants].sort(([, a], [, b]) => b.size - a.size);
    const [oldest] = largest.keys();
    largest.delete(oldest);
    if (largest.size === 0) tenants.delete(tenant);
    size--;
  };

  return {
    get(tenant, key, create) {
      if (key.length > MAX_KEY) return create();
      const own = tenants.get(tenant) ?? new Map<string, Entry<T>>();
      const known = own.get(key);
      const entry = known ?? attempt(create);
      own.delete(key);
      own.set(key, entry);
      tenants.delete(tenant);
      tenants.set(tenant, own);
      if (!known && ++size > max) makeRoom();
      if ('error' in entry) throw entry.error;
      return entry.value as T;
    },
  };
}

function attempt<T>(create: () => T): Entry<T> {
  try {
    return { value: create() };
  } catch (error) {
    return { error };
  }
}
