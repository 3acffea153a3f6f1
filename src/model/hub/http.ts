/** Talking to the hub: redirects that keep the token at home, retries with patience, refusals in words that help. */
import { setTimeout as sleep } from 'node:timers/promises';
import { FormatError, NetworkError } from '../../errors.ts';
import { printable } from './text.ts';

export interface Hub {
  endpoint: string;
  token?: string;
  signal?: AbortSignal;
  note: (line: string) => void;
  /** How many failures in a row, without a byte between them, end a download. */
  retries: number;
  /** The first pause; each further one is twice as long. */
  retryMs: number;
  /** A connection that says nothing for this long is dead. */
  stallMs: number;
}

/** A failure that may be gone in a moment. Never leaves this folder: the last one becomes a NetworkError. */
export class Transient extends Error {
  readonly waitMs?: number;
  constructor(message: string, options: { cause?: unknown; waitMs?: number } = {}) {
    super(message, { cause: options.cause });
    this.waitMs = options.waitMs;
  }
}

/** A response, and the means to read it: the signal that ends it when the connection goes quiet. */
export interface Reply {
  response: Response;
  /** Whether the hub itself answered, rather than the store it sent us to. */
  home: boolean;
  /** The next bytes; undefined at the end. */
  read(): Promise<Uint8Array | undefined>;
  /** Ends the connection; harmless after the end. */
  close(): Promise<void>;
}

interface RequestOptions {
  method?: 'GET' | 'HEAD';
  /** Skip so many bytes. */
  from?: number;
  /** Do not follow a redirect away from the hub: what it says itself is wanted. */
  stay?: boolean;
}

const maxRedirects = 5;

/** One request, no retries. */
export async function request(hub: Hub, url: string, options: RequestOptions = {}): Promise<Reply> {
  const { method = 'GET', from = 0, stay = false } = options;
  const origin = new URL(hub.endpoint).origin;
  const watch = watchdog(hub);
  let at = new URL(url);
  try {
    for (let hop = 0; hop <= maxRedirects; hop++) {
      // identity: a proxy that compressed the bytes would spoil ranges and sizes.
      const headers: Record<string, string> = { 'user-agent': 'kvasir', 'accept-encoding': 'identity' };
      if (from > 0) headers.range = `bytes=${from}-`;
      if (hub.token !== undefined && at.origin === origin) headers.authorization = `Bearer ${hub.token}`;
      const response = await watch.guard(fetch(at, { method, headers, redirect: 'manual', signal: watch.signal }), at);
      const next = redirection(response, at);
      if (next === undefined || (stay && next.origin !== origin)) {
        return reply(response, at.origin === origin, watch, at);
      }
      await response.body?.cancel().catch(() => {});
      at = next;
    }
  } catch (error) {
    watch.stop();
    throw error;
  }
  watch.stop();
  throw new NetworkError(`${url} redirects more than ${maxRedirects} times: check HF_ENDPOINT (${hub.endpoint})`);
}

function redirection(response: Response, from: URL): URL | undefined {
  const location = response.headers.get('location');
  if (response.status < 300 || response.status > 399 || location === null) return undefined;
  const next = URL.canParse(location, from.href) ? new URL(location, from) : undefined;
  const secure = next?.protocol === 'https:' || (next?.protocol === 'http:' && from.protocol === 'http:');
  if (next && secure) return next;
  throw new FormatError(`${from.host} redirects to '${printable(location)}', which is no safe address: not followed`);
}

function reply(response: Response, home: boolean, watch: ReturnType<typeof watchdog>, at: URL): Reply {
  const reader = response.body?.getReader();
  return {
    response,
    home,
    async read() {
      const chunk = reader ? await watch.guard(reader.read(), at) : undefined;
      return chunk?.value;
    },
    async close() {
      watch.stop();
      await reader?.cancel().catch(() => {});
    },
  };
}

/** Ends a connection when the caller aborts, or when it has been quiet for too long. */
function watchdog(hub: Hub) {
  const controller = new AbortController();
  const onAbort = () => controller.abort(hub.signal?.reason);
  const timer = setTimeout(() => controller.abort(new Error(`no answer for ${hub.stallMs / 1000} s`)), hub.stallMs);
  if (hub.signal?.aborted) onAbort();
  hub.signal?.addEventListener('abort', onAbort);
  return {
    signal: controller.signal,
    stop() {
      clearTimeout(timer);
      hub.signal?.removeEventListener('abort', onAbort);
    },
    /** Waits for the network alone, so that whatever fails in here is the network's fault. */
    async guard<T>(step: Promise<T>, at: URL): Promise<T> {
      try {
        const result = await step;
        timer.refresh();
        return result;
      } catch (error) {
        hub.signal?.throwIfAborted();
        const { message, cause } = error as Error;
        throw new Transient(`${at.host}: ${(cause as Error | undefined)?.message || message}`, { cause: error });
      }
    },
  };
}

/** Runs until it succeeds, fails for good, or has failed too often in a row; `progressed` starts the count anew. */
export async function retrying<T>(hub: Hub, retries: number, run: (progressed: () => void) => Promise<T>): Promise<T> {
  let failures = 0;
  for (;;) {
    try {
      return await run(() => {
        failures = 0;
      });
    } catch (error) {
      if (!(error instanceof Transient)) throw error;
      if (failures++ >= retries) {
        throw new NetworkError(`${error.message}. Check the network and run the same command again; ${leftOver}.`, {
          cause: error,
        });
      }
      const wait = error.waitMs ?? Math.min(hub.retryMs * 2 ** (failures - 1), 30_000) * (0.75 + Math.random() / 2);
      hub.note(`${error.message}; trying again in ${(wait / 1000).toFixed(1)} s (${failures} of ${retries})`);
      await sleep(wait, undefined, { signal: hub.signal });
    }
  }
}

const leftOver = 'what was downloaded is kept and continues from there';

/** What a status other than success means, and what the user can do about it. */
export function refusal(hub: Hub, { response, home }: Reply, repo: string, what: string): Error {
  const { status, headers } = response;
  const page = `${hub.endpoint}/${repo}`;
  const reason = headers.get('x-error-message') ?? '';
  const said = reason && ` (the hub says: ${printable(reason)})`;
  if (status === 429) return tooMany(hub, headers.get('retry-after'));
  // A store refuses when its signed address has expired; every attempt asks the hub for a new one.
  if (status >= 500 || status === 408 || !home) return new Transient(`${what}: the server answered ${status}`);
  const code = headers.get('x-error-code') ?? '';
  if (code === 'GatedRepo') {
    return new NetworkError(
      `${repo} is gated: accept its terms at ${page}, then set HF_TOKEN to a token of that account ` +
        `(make one at ${hub.endpoint}/settings/tokens)${said}`,
    );
  }
  if (status === 401 && hub.token === undefined) {
    return new NetworkError(
      `${repo} does not exist, or is private or gated. Check the name at ${page}; for a private or gated one, ` +
        `set HF_TOKEN to a token that may read it${said}`,
    );
  }
  if (status === 401 || status === 403) {
    return new NetworkError(
      `your token may not read ${repo}, or ${repo} does not exist. Check HF_TOKEN, and ask for access at ${page}${said}`,
    );
  }
  if (status === 404) {
    if (code === 'RevisionNotFound') {
      return new NetworkError(`${repo} has no such revision: see ${page}/tree/main for its branches and tags${said}`);
    }
    return new NetworkError(`${what} was not found: check the name at ${page}${said}`);
  }
  return new NetworkError(`${what}: the server answered ${status}${said}; check HF_ENDPOINT (${hub.endpoint})`);
}

const longestWaitMs = 120_000;

function tooMany(hub: Hub, retryAfter: string | null): Error {
  const seconds = Number(retryAfter ?? Number.NaN);
  const waitMs = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(retryAfter ?? '') - Date.now();
  const advice = hub.token === undefined ? '; a token in HF_TOKEN raises the limit' : '';
  if (waitMs > longestWaitMs) {
    return new NetworkError(`too many requests: the hub asks to wait ${Math.ceil(waitMs / 60_000)} minutes${advice}`);
  }
  return new Transient(`too many requests${advice}`, { waitMs: waitMs >= 0 ? waitMs : undefined });
}
