/** The few commands that the redis store needs, each on many keys at once, for a single server and for a cluster. */
type RedisModule = typeof import('redis');

export interface RedisConnection {
  getAll(keys: readonly string[]): Promise<(Buffer | null)[]>;
  setAll(values: readonly (readonly [key: string, value: Uint8Array])[], ttlMs: number): Promise<void>;
  existAll(keys: readonly string[]): Promise<boolean[]>;
  deleteAll(keys: readonly string[]): Promise<void>;
  destroy(): void;
}

export interface ConnectionOptions {
  urls: readonly string[];
  cluster: boolean;
  /** Of connecting, and of each call. */
  timeoutMs: number;
  tls?: object;
  /** Receives the error of a call that worked for some of its keys only: a node of a cluster is down. */
  onError: (error: Error) => void;
}

/** Replies beyond this wait in the client only if the server hangs. */
const MAX_QUEUE = 10_000;

export async function connectRedis(
  { createClient, createCluster, RESP_TYPES }: RedisModule,
  { urls, cluster, timeoutMs, tls, onError }: ConnectionOptions,
): Promise<RedisConnection> {
  const common = {
    disableOfflineQueue: true,
    commandsQueueMaxLength: MAX_QUEUE,
    // A connection that is lost is opened again by the store, when its circuit breaker allows.
    socket: {
      connectTimeout: timeoutMs,
      reconnectStrategy: false as const,
      ...(tls ? { tls: true as const, ...tls } : {}),
    },
    commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } },
  };
  const client = cluster
    ? createCluster({ rootNodes: urls.map(url => ({ url })), defaults: common })
    : createClient({ ...common, url: urls[0] });
  // Without a listener an error would end the process; each command that it concerns is rejected anyway.
  client.on('error', () => {});
  client.on('node-error', () => {});
  await withTimeout<unknown>(client.connect(), timeoutMs);

  /** Whether any node of a cluster answers. */
  const isPartlyUp = async (): Promise<boolean> => {
    if (!('masters' in client)) return false;
    const answers = client.masters.map(async node => (await client.nodeClient(node)).ping());
    return withTimeout(Promise.any(answers), timeoutMs).then(
      () => true,
      () => false,
    );
  };

  /** The replies, undefined where a command failed. Throws if the whole server or cluster is down. */
  const settle = async (commands: readonly Promise<unknown>[]): Promise<unknown[]> => {
    const late = createTimeout(timeoutMs);
    const results = await Promise.allSettled(commands.map(command => Promise.race([command, late.promise])));
    late.clear();
    const failed = results.find(({ status }) => status === 'rejected') as PromiseRejectedResult | undefined;
    const isNone = results.every(({ status }) => status === 'rejected');
    if (failed && isNone && !(await isPartlyUp())) throw failed.reason;
    if (failed) onError(failed.reason);
    return results.map(result => (result.status === 'fulfilled' ? result.value : undefined));
  };

  return {
    async getAll(keys) {
      const values = await settle(keys.map(key => client.get(key)));
      return values.map(value => (Buffer.isBuffer(value) ? value : null));
    },
    async setAll(values, ttlMs) {
      const expiration = { type: 'PX' as const, value: ttlMs };
      const bufferOf = ({ buffer, byteOffset, length }: Uint8Array) => Buffer.from(buffer, byteOffset, length);
      await settle(values.map(([key, value]) => client.set(key, bufferOf(value), { expiration })));
    },
    async existAll(keys) {
      const counts = await settle(keys.map(key => client.exists(key)));
      return counts.map(count => count === 1);
    },
    async deleteAll(keys) {
      await settle(keys.map(key => client.unlink(key)));
    },
    destroy: () => client.destroy(),
  };
}

function createTimeout(ms: number): { promise: Promise<never>; clear(): void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const promise = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms);
  });
  promise.catch(() => {});
  return { promise, clear: () => clearTimeout(timer) };
}

export async function withTimeout<T>(result: Promise<T>, ms: number): Promise<T> {
  const late = createTimeout(ms);
  return Promise.race([result, late.promise]).finally(late.clear);
}
