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
  timeoutMs: number;
  tls?: object;
}

/** Replies beyond this wait in the client only if the server hangs. */
const MAX_QUEUE = 10_000;

export async function connectRedis(
  { createClient, createCluster, RESP_TYPES }: RedisModule,
  { urls, cluster, timeoutMs, tls }: ConnectionOptions,
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
  await client.connect();
  return {
    async getAll(keys) {
      const values = await Promise.all(keys.map(key => client.get(key) as Promise<unknown>));
      return values.map(value => (Buffer.isBuffer(value) ? value : null));
    },
    async setAll(values, ttlMs) {
      const expiration = { type: 'PX' as const, value: ttlMs };
      await Promise.all(
        values.map(([key, value]) =>
          client.set(key, Buffer.from(value.buffer, value.byteOffset, value.length), { expiration }),
        ),
      );
    },
    async existAll(keys) {
      const counts = await Promise.all(keys.map(key => client.exists(key) as Promise<unknown>));
      return counts.map(count => count === 1);
    },
    async deleteAll(keys) {
      await Promise.all(keys.map(key => client.unlink(key)));
    },
    destroy: () => client.destroy(),
  };
}
