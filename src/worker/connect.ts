/** `connectService`: a service at the other end of a port. */

import type { LoadProgress } from '../model/weights.ts';
import { decodeError } from '../util/error-message.ts';
import { DeviceError, InputError } from '../util/errors.ts';
import { type CallMethod, type Event, type Port, PROTOCOL_VERSION, type Request } from './protocol.ts';
import { createRemoteStream, type NewRequest, type Pending, type StreamConnection } from './remote-stream.ts';
import type { ModelService, ServiceInfo } from './service.ts';
import { createWatchdog } from './watchdog.ts';

export interface ConnectOptions {
  /** What to load; its meaning is up to the host. Plain data. */
  source?: unknown;
  onProgress?: (progress: LoadProgress) => void;
  /**
   * Milliseconds that the device may take for a pass. If it takes longer, it hangs: the service ends, and everything that
   * waits fails. Default: no limit.
   */
  maxPassMs?: number;
}

/** A service at the other end of a port. Its streams check their input when they are first read. */
export interface RemoteService extends ModelService {
  /** Refuses new requests, and waits until those that run have ended. */
  drain(): Promise<void>;
}

/** Asks the host to load a service, and resolves when it is ready. */
export async function connectService(port: Port, options: ConnectOptions = {}): Promise<RemoteService> {
  const pending = new Map<number, Pending>();
  let nextId = 0;
  let isDraining = false;
  let failure: Error | undefined;
  const loading = deferred<ServiceInfo>();
  const ended = deferred<Error>();
  const drained = deferred<void>();

  /** Fails everything that waits, now and later. */
  const end = (error: Error) => {
    if (failure) return;
    failure = error;
    loading.reject(error);
    ended.resolve(error);
    setActive(false);
    for (const id of [...pending.keys()]) settle(id)?.fail(error);
  };

  const settle = (id: number): Pending | undefined => {
    const settled = pending.get(id);
    pending.delete(id);
    if (pending.size > 0) return settled;
    setActive(false);
    if (isDraining) drained.resolve();
    return settled;
  };

  const post = (request: Request) => {
    try {
      port.post(request);
    } catch (error) {
      const reason = (error as Error).message;
      throw new InputError(`A request must be plain data that can be sent as a message: ${reason}`);
    }
  };

  /** Sends a request that is waited for. */
  const send = (waiting: Pending, request: NewRequest): number => {
    const id = nextId++;
    post({ ...request, id });
    if (pending.size === 0) setActive(true);
    pending.set(id, waiting);
    return id;
  };

  const start: typeof send = (waiting, request) => {
    if (failure) throw failure;
    if (isDraining) throw new DeviceError('The engine is stopping and takes no new requests.');
    return send(waiting, request);
  };

  const callBy = <T>(sender: typeof send, method: CallMethod, args: unknown[] = []) =>
    new Promise<T>((resolve, reject) => {
      sender({ onValue: value => resolve(value as T), fail: reject }, { type: 'call', method, args });
    });
  const call = <T>(method: CallMethod, ...args: unknown[]) => callBy<T>(start, method, args);

  const watchdog = createWatchdog(options.maxPassMs, {
    // Also while it drains.
    ping: () => callBy(send, 'ping'),
    onHang: limit => end(new DeviceError(describeHang(limit))),
  });

  /** Told whether answers are waited for. */
  const setActive = (isActive: boolean) => {
    port.setActive?.(isActive);
    watchdog.setActive(isActive);
  };

  const receive = (event: Event) => {
    switch (event.type) {
      case 'progress':
        return options.onProgress?.(event.progress);
      case 'ready':
        return loading.resolve(event.info);
      case 'failed':
      case 'ended':
        return end(decodeError(event.error));
      case 'value':
        return settle(event.id)?.onValue?.(event.value);
      case 'prefill':
        return pending.get(event.id)?.onPrefill?.(event.done, event.total);
      case 'delta':
        return pending.get(event.id)?.onDelta?.(event);
      case 'end':
        return settle(event.id)?.onEnd?.(event.result);
      case 'error':
        if (event.id === undefined) return end(decodeError(event.error));
        return settle(event.id)?.fail(decodeError(event.error));
    }
  };

  port.onMessage(events => {
    for (const event of events as Event[]) receive(event);
  });
  port.onClose(reason => end(new DeviceError(describeEnd(reason))));
  port.setActive?.(true);
  post({ type: 'load', version: PROTOCOL_VERSION, source: options.source });
  const info = await loading.promise;
  port.setActive?.(false);

  const streams: StreamConnection = { start, isPending: id => pending.has(id), post };
  return {
    info,
    ended: ended.promise,
    stats: () => call('stats'),
    ping: () => call('ping'),
    answer: (input, options) => createRemoteStream(streams, { method: 'answer', input }, options),
    generate: (input, options) => createRemoteStream(streams, { method: 'generate', input }, options),
    tokenize: (text, options) => call('tokenize', text, options),
    tokenizePrompt: (text, options) => call('tokenizePrompt', text, options),
    tokenizeChat: (messages, options) => call('tokenizeChat', messages, options),
    detokenize: ids => call('detokenize', ids),
    tokenBytes: ids => call('tokenBytes', ids),
    nearestText: (prompt, options) => call('nearestText', prompt, options),
    saveSlot: (slot, path, tenant) => call('saveSlot', slot, path, tenant),
    restoreSlot: (slot, path, tenant) => call('restoreSlot', slot, path, tenant),
    eraseSlot: (slot, tenant) => call('eraseSlot', slot, tenant),
    slots: tenant => call('slots', tenant),
    async drain() {
      isDraining = true;
      if (pending.size > 0) await drained.promise;
    },
    async close() {
      if (!failure) {
        port.setActive?.(true);
        post({ type: 'close' });
      }
      await ended.promise;
      port.close();
    },
  };
}

function deferred<T>() {
  let resolve!: (value: T) => void;
  let reject!: (error: Error) => void;
  const promise = new Promise<T>((onResolve, onReject) => {
    resolve = onResolve;
    reject = onReject;
  });
  // Whoever waits for it gets the error.
  promise.catch(() => {});
  return { promise, resolve, reject };
}

const describeHang = (ms: number): string =>
  `The engine has not answered for ${ms / 1000} s: the device hangs. Send the request again when it has been restarted.`;

const describeEnd = (reason?: string): string =>
  `The engine process ended${reason ? ` (${reason})` : ''}. Send the request again when it has been restarted.`;
