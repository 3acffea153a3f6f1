/** HTTP requests to the hub: redirects that never leak the token, retries, and helpful errors. */
import { setTimeout as sleep } from 'node:timers/promises';
import { FormatError, NetworkError } from '../util/errors.ts';
import { toPrintable } from './format.ts';
import { unusedProxyNotice } from './proxy.ts';

/** A hub server: its URL, the access token and the retry settings. */
export interface Hub {
  endpoint: string;
  token?: string;
  signal?: AbortSignal;
  onMessage: (line: string) => void;
  /** Retries after consecutive failures without progress. */
  retries: number;
  /** Delay before the first retry; doubles with each further one. */
  retryDelayMs: number;
  /** A connection without data for this long is closed. */
  idleTimeoutMs: number;
}

/** A failure worth a retry. Internal: when retries run out it becomes a NetworkError. */
export class TransientError extends Error {
  readonly retryAfterMs?: number;
  constructor(message: string, options: { cause?: unknown; retryAfterMs?: number } = {}) {
    super(message, { cause: options.cause });
    this.retryAfterMs = options.retryAfterMs;
  }
}

/** A response whose body is read with an idle timeout. */
export interface HubResponse {
  response: Response;
  /** Whether the hub itself answered, not a storage server that it redirected to. */
  isFromHub: boolean;
  /** The next chunk; undefined at the end. */
  read(): Promise<Uint8Array | undefined>;
  /** Closes the connection; may be called twice. */
  close(): Promise<void>;
}

interface RequestOptions {
  method?: 'GET' | 'HEAD';
  /** First byte to request. */
  start?: number;
  /** The byte after the last one. Default: the end of the file. */
  end?: number;
  /** Do not follow redirects to other hosts. Default: false. */
  sameOrigin?: boolean;
}

const maxRedirects = 5;

/** One request, no retries. */
export async function request(hub: Hub, url: string, options: RequestOptions = {}): Promise<HubResponse> {
  const { method = 'GET', start = 0, end, sameOrigin = false } = options;
  const origin = new URL(hub.endpoint).origin;
  const idleTimeout = createIdleTimeout(hub);
  let current = new URL(url);
  try {
    for (let hop = 0; hop <= maxRedirects; hop++) {
      // identity: compression by a proxy would break ranges and sizes.
      const headers: Record<string, string> = { 'user-agent': 'kvasir', 'accept-encoding': 'identity' };
      if (start > 0 || end !== undefined) headers.range = `bytes=${start}-${end === undefined ? '' : end - 1}`;
      if (hub.token !== undefined && current.origin === origin) headers.authorization = `Bearer ${hub.token}`;
      const response = await idleTimeout.watch(
        fetch(current, { method, headers, redirect: 'manual', signal: idleTimeout.signal }),
        current,
      );
      const next = redirectTarget(response, current);
      if (next === undefined || (sameOrigin && next.origin !== origin)) {
        return createHubResponse(response, current.origin === origin, idleTimeout, current);
      }
      await response.body?.cancel().catch(() => {});
      current = next;
    }
  } catch (error) {
    idleTimeout.stop();
    throw error;
  }
  idleTimeout.stop();
  throw new NetworkError(`${url} redirects more than ${maxRedirects} times: check HF_ENDPOINT (${hub.endpoint})`);
}

function redirectTarget(response: Response, from: URL): URL | undefined {
  const location = response.headers.get('location');
  if (response.status < 300 || response.status > 399 || location === null) return undefined;
  const next = URL.canParse(location, from.href) ? new URL(location, from) : undefined;
  const secure = next?.protocol === 'https:' || (next?.protocol === 'http:' && from.protocol === 'http:');
  if (next && secure) return next;
  throw new FormatError(`${from.host} redirects to '${toPrintable(location)}', which is not a safe URL: not followed`);
}

function createHubResponse(
  response: Response,
  isFromHub: boolean,
  idleTimeout: ReturnType<typeof createIdleTimeout>,
  url: URL,
): HubResponse {
  const reader = response.body?.getReader();
  return {
    response,
    isFromHub,
    async read() {
      const chunk = reader ? await idleTimeout.watch(reader.read(), url) : undefined;
      return chunk?.value;
    },
    async close() {
      idleTimeout.stop();
      await reader?.cancel().catch(() => {});
    },
  };
}

/** Aborts a connection when the caller aborts, or when no data arrives for too long. */
function createIdleTimeout(hub: Hub) {
  const controller = new AbortController();
  const onAbort = () => controller.abort(hub.signal?.reason);
  const timer = setTimeout(
    () => controller.abort(new Error(`no response for ${hub.idleTimeoutMs / 1000} s`)),
    hub.idleTimeoutMs,
  );
  if (hub.signal?.aborted) onAbort();
  hub.signal?.addEventListener('abort', onAbort);
  return {
    signal: controller.signal,
    stop() {
      clearTimeout(timer);
      hub.signal?.removeEventListener('abort', onAbort);
    },
    /** Awaits one network operation and restarts the timeout; a failure becomes a TransientError. */
    async watch<T>(step: Promise<T>, url: URL): Promise<T> {
      try {
        const result = await step;
        timer.refresh();
        return result;
      } catch (error) {
        hub.signal?.throwIfAborted();
        const { message, cause } = error as Error;
        throw new TransientError(`${url.host}: ${(cause as Error | undefined)?.message || message}`, { cause: error });
      }
    },
  };
}

/** Retries transient failures, at most `retries` in a row; calling `onProgress` resets the count. */
export async function withRetries<T>(
  hub: Hub,
  retries: number,
  run: (onProgress: () => void) => Promise<T>,
): Promise<T> {
  let failures = 0;
  for (;;) {
    try {
      return await run(() => {
        failures = 0;
      });
    } catch (error) {
      if (!(error instanceof TransientError)) throw error;
      if (failures++ >= retries) {
        const proxy = unusedProxyNotice(hub.endpoint);
        throw new NetworkError(
          `${error.message}. Check the network and run the same command again; ${partialKept}.${proxy}`,
          { cause: error },
        );
      }
      const wait =
        error.retryAfterMs ?? Math.min(hub.retryDelayMs * 2 ** (failures - 1), 30_000) * (0.75 + Math.random() / 2);
      hub.onMessage(`${error.message}; retrying in ${(wait / 1000).toFixed(1)} s (${failures} of ${retries})`);
      await sleep(wait, undefined, { signal: hub.signal });
    }
  }
}

const partialKept = 'the download will resume where it stopped';

/** The error for a failure status, with advice for the user. */
export function statusError(hub: Hub, { response, isFromHub }: HubResponse, repo: string, what: string): Error {
  const { status, headers } = response;
  const page = `${hub.endpoint}/${repo}`;
  const reason = headers.get('x-error-message') ?? '';
  const said = reason && ` (the hub says: ${toPrintable(reason)})`;
  if (status === 429) return rateLimitError(hub, headers.get('retry-after'));
  // A storage server fails when its signed URL has expired; every retry gets a new one from the hub.
  if (status >= 500 || status === 408 || !isFromHub)
    return new TransientError(`${what}: the server responded with ${status}`);
  const code = headers.get('x-error-code') ?? '';
  if (code === 'GatedRepo') {
    return new NetworkError(
      `${repo} is gated: accept its terms at ${page}, then set HF_TOKEN to a token of your account ` +
        `(create one at ${hub.endpoint}/settings/tokens)${said}`,
    );
  }
  if (status === 401 && hub.token === undefined) {
    return new NetworkError(
      `${repo} does not exist, or is private or gated. Check the name at ${page}; for a private or gated one, ` +
        `set HF_TOKEN to a token with access${said}`,
    );
  }
  if (status === 401 || status === 403) {
    return new NetworkError(
      `your token has no access to ${repo}, or ${repo} does not exist. Check HF_TOKEN, and request access at ${page}${said}`,
    );
  }
  if (status === 404) {
    if (code === 'RevisionNotFound') {
      return new NetworkError(`${repo} has no such revision: see ${page}/tree/main for its branches and tags${said}`);
    }
    return new NetworkError(`${what} was not found: check the name at ${page}${said}`);
  }
  return new NetworkError(`${what}: the server responded with ${status}${said}; check HF_ENDPOINT (${hub.endpoint})`);
}

const maxRetryAfterMs = 120_000;

function rateLimitError(hub: Hub, retryAfter: string | null): Error {
  const seconds = Number(retryAfter ?? Number.NaN);
  const waitMs = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(retryAfter ?? '') - Date.now();
  const advice = hub.token === undefined ? '; a token in HF_TOKEN raises the limit' : '';
  if (waitMs > maxRetryAfterMs) {
    return new NetworkError(`too many requests: the hub asks to wait ${Math.ceil(waitMs / 60_000)} minutes${advice}`);
  }
  return new TransientError(`too many requests${advice}`, { retryAfterMs: waitMs >= 0 ? waitMs : undefined });
}
