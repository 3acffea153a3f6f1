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
/** In time-outs: connections are pinged this often, and closed if they are silent for so long. */
const [PING_TIMEOUTS, SILENT_TIMEOUTS] = [5, 15];

export async function connectRedis(
  { createClient, createCluster, RESP_TYPES }: RedisModule,
  { urls, cluster, timeoutMs, tls, onError }: ConnectionOptions,
): Promise<RedisConnection> {
  const { protocol, username, password } = new URL(urls[0]);
  const common = {
    disableOfflineQueue: true,
    commandsQueueMaxLength: MAX_QUEUE,
    // The nodes of a cluster are found by their addresses: they are asked as the first url says.
    ...(username ? { username: decodeURIComponent(username) } : {}),
    ...(password ? { password: decodeURIComponent(password) } : {}),
    // A connection that is lost is opened again by the store, when its circuit breaker allows. The client of a cluster
    // cannot close a connection that hangs before it is open: it closes itself.
    pingInterval: PING_TIMEOUTS * timeoutMs,
    socket: {
      connectTimeout: timeoutMs,
      socketTimeout: SILENT_TIMEOUTS * timeoutMs,
      reconnectStrategy: false as const,
      ...(tls || protocol === 'rediss:' ? { tls: true as const, ...tls } : {}),
    },
    commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } },
  };
  const client = cluster
    ? createCluster({ rootNodes: urls.map(url => ({ url })), defaults: common })
    : createClient({ ...common, url: urls[0] });
  let lastError: Error | undefined;
  // Without a listener an error would end the process; each command that it concerns is rejected anyway.
  const noteError = (error: Error) => {
    lastError = error;
  };
  client.on('error', noteError);
  client.on('node-error', noteError);
  const destroy = () => {
    try {
      client.destroy();
    } catch {
      // It is closed already.
    }
  };
  const connecting: Promise<unknown> = client.connect();
  try {
    await withTimeout(connecting, timeoutMs);
  } catch (error) {
    destroy();
    // A cluster goes on to connect to the nodes that it has found.
    connecting.then(destroy, destroy);
    // That no node of a cluster can be reached tells less than why.
    throw lastError ?? error;
  }

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
    destroy,
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

async function withTimeout<T>(result: Promise<T>, ms: number): Promise<T> {
  const late = createTimeout(ms);
  return Promise.race([result, late.promise]).finally(late.clear);
}
