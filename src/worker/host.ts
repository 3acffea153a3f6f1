/** `hostService`: serves a model to the other end of a port. */

import type { LoadProgress } from '../model/weights.ts';
import { encodeError } from '../util/error-message.ts';
import { InputError, UnsupportedError } from '../util/errors.ts';
import {
  type CallRequest,
  type Event,
  type OpenRequest,
  type Port,
  PROTOCOL_VERSION,
  parseRequest,
  type Request,
} from './protocol.ts';
import type { ModelService } from './service.ts';

export interface HostLoadOptions {
  onProgress(progress: LoadProgress): void;
  /** Aborts when the user has left. */
  signal: AbortSignal;
}

/** Loads what the user asks for. `source` is what `connectService` was given: check it. */
export type LoadService = (source: unknown, options: HostLoadOptions) => Promise<ModelService>;

/** A stream that is being read. */
interface OpenStream {
  abort: AbortController;
  credits: number;
  hasLeft: boolean;
  /** Continues reading. */
  resume(): void;
}

/** Answers all messages of a port, until its user closes the service or is gone. Then the service is closed. */
export function hostService(port: Port, load: LoadService): void {
  const { post, flush } = createOutbox(port);
  const streams = new Map<number, OpenStream>();
  const loading = new AbortController();
  let service: ModelService | undefined;
  let hasLoaded = false;
  let isClosed = false;

  const close = async () => {
    if (isClosed) return;
    isClosed = true;
    loading.abort();
    for (const id of streams.keys()) cancel(id, true);
    await service?.close();
    if (service) post({ type: 'ended', error: encodeError(await service.ended) });
    flush();
    port.close();
  };

  const loadOnce = async (source: unknown, version: number) => {
    if (hasLoaded) throw new InputError('This service was loaded before. Connect to another one.');
    hasLoaded = true;
    try {
      if (version !== PROTOCOL_VERSION) throw new UnsupportedError(describeVersions(version));
      const onProgress = (progress: LoadProgress) => post({ type: 'progress', progress });
      service = await load(source, { onProgress, signal: loading.signal });
      if (isClosed) return await service.close();
      post({ type: 'ready', info: service.info });
      void service.ended.then(error => post({ type: 'ended', error: encodeError(error) }));
    } catch (error) {
      post({ type: 'failed', error: encodeError(error) });
    }
  };

  const loaded = (): ModelService => {
    if (!service) throw new InputError('This service has not been loaded yet. Wait until it is ready.');
    return service;
  };

  const call = async ({ id, method, args }: CallRequest) => {
    // Each method checks its own arguments.
    const work = loaded()[method] as (...args: unknown[]) => Promise<unknown>;
    post({ type: 'value', id, value: await work(...args) });
  };

  const read = async (request: OpenRequest) => {
    const { id, method, input, options, credits, prefill } = request;
    if (streams.has(id)) throw new InputError(`Stream ${id} is open already. Use another id.`);
    const open: OpenStream = { abort: new AbortController(), credits, hasLeft: false, resume() {} };
    streams.set(id, open);
    try {
      const stream = loaded()[method](input as never, {
        ...options,
        signal: open.abort.signal,
        onPrefill: prefill ? ({ done, total }) => post({ type: 'prefill', id, done, total }) : undefined,
      });
      for await (const value of stream) {
        if (open.hasLeft) break;
        const { text: _, ids: __, logprobs: ___, ...state } = stream.partial;
        post({ type: 'delta', id, value, state });
        if (--open.credits > 0 || open.abort.signal.aborted) continue;
        await new Promise<void>(resolve => {
          open.resume = resolve;
        });
      }
      post({ type: 'end', id, result: stream.partial });
    } finally {
      streams.delete(id);
    }
  };

  const addCredits = (id: number, count: number) => {
    const open = streams.get(id);
    if (!open) return;
    open.credits += count;
    open.resume();
  };

  /** A stream may have ended while the message was on its way. */
  const cancel = (id: number, hasLeft: boolean) => {
    const open = streams.get(id);
    if (!open) return;
    open.hasLeft ||= hasLeft;
    open.abort.abort();
    open.resume();
  };

  const handle = async (request: Request): Promise<void> => {
    switch (request.type) {
      case 'load':
        return loadOnce(request.source, request.version);
      case 'call':
        return call(request);
      case 'open':
        return read(request);
      case 'credits':
        return addCredits(request.id, request.count);
      case 'cancel':
        return cancel(request.id, request.hasLeft);
      case 'close':
        return close();
    }
  };

  port.onMessage(async message => {
    try {
      await handle(parseRequest(message));
    } catch (error) {
      const id = (message as { id?: unknown } | null)?.id;
      post({ type: 'error', ...(typeof id === 'number' && { id }), error: encodeError(error) });
    }
  });
  port.onClose(() => void close());
}

/**
 * Sends all events of a turn as one message: a pass produces tokens for many streams. It is sent before any of these
 * streams goes on, so that the state of a delta is that of its moment.
 */
function createOutbox(port: Port) {
  let events: Event[] = [];
  const flush = () => {
    if (events.length > 0) port.post(events);
    events = [];
  };
  return {
    flush,
    post(event: Event) {
      if (events.push(event) === 1) queueMicrotask(flush);
    },
  };
}

const describeVersions = (version: number): string =>
  `The user of this service speaks version ${String(version).slice(0, 20)} of the message protocol, and the service version ` +
  `${PROTOCOL_VERSION}. Use the same version of Kvasir on both sides.`;
