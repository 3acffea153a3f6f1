/** Streams of server-sent events, or of lines: a generator as a response, with heartbeats while there is nothing. */

export interface SseOptions {
  contentType: string;
  /** Milliseconds without an event after which a heartbeat is sent: proxies close silent connections. */
  heartbeatMs: number;
  /** What is sent as a heartbeat. */
  heartbeat: string;
  /** An error after the response has begun, as an event. */
  formatError: (error: unknown) => string;
  /** Called if the client leaves before the end. */
  onLeave: () => void;
  /** Called when the last event has been sent or the client has left, and nothing runs any more. */
  onEnd: () => void;
}

export const COMMENT_HEARTBEAT = ': heartbeat\n\n';

export const formatEvent = (data: unknown, event?: string): string =>
  `${event === undefined ? '' : `event: ${event}\n`}data: ${typeof data === 'string' ? data : JSON.stringify(data)}\n\n`;

const HEADERS = {
  'cache-control': 'no-cache, no-transform',
  // nginx would collect events otherwise.
  'x-accel-buffering': 'no',
};

/**
 * Waits for the first event, or the first heartbeat: an error before that is thrown, and gets an HTTP status of its own. Events
 * are made as fast as they are read.
 */
export async function sseResponse(
  events: AsyncGenerator<string, void, void>,
  { contentType, heartbeatMs, heartbeat, formatError, onLeave, onEnd }: SseOptions,
): Promise<Response> {
  /** The next event, or undefined when it is time for a heartbeat. */
  const nextOrHeartbeat = async (): Promise<IteratorResult<string, void> | undefined> => {
    let timer: NodeJS.Timeout | undefined;
    const silence = new Promise<undefined>(resolve => {
      timer = setTimeout(resolve, heartbeatMs, undefined);
    });
    try {
      return await Promise.race([pending, silence]);
    } finally {
      clearTimeout(timer);
    }
  };
  /** Asks for the next event. Its error is handled when it is read. */
  const ask = () => {
    pending = events.next();
    pending.catch(() => {});
  };
  const encoder = new TextEncoder();
  let pending: Promise<IteratorResult<string, void>>;
  ask();
  let ready = await nextOrHeartbeat();
  let isFirst = true;
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const next = isFirst ? ready : await nextOrHeartbeat();
        isFirst = false;
        ready = undefined;
        if (next?.done) {
          controller.close();
          return onEnd();
        }
        if (next) ask();
        controller.enqueue(encoder.encode(next ? next.value : heartbeat));
      } catch (error) {
        controller.enqueue(encoder.encode(formatError(error)));
        controller.close();
        onEnd();
      }
    },
    async cancel() {
      onLeave();
      await pending.catch(() => {});
      await events.return();
      onEnd();
    },
  });
  return new Response(body, { headers: { 'content-type': contentType, ...HEADERS } });
}
