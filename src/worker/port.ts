/** Ports of what sends messages by `postMessage`: a MessagePort, a Worker, or a Worker's own `self`. */
import type { Port } from './protocol.ts';

/** The part of MessagePort, Worker and DedicatedWorkerGlobalScope that a port needs. */
export interface MessageTarget {
  postMessage(message: unknown): void;
  addEventListener(type: string, listener: (event: { data?: unknown; message?: string }) => void): void;
  /** MessagePort: messages wait until it is called. */
  start?(): void;
  close?(): void;
  /** Worker. */
  terminate?(): void;
}

export function messagePort(target: MessageTarget): Port {
  return {
    post: message => target.postMessage(message),
    onMessage(listener) {
      target.addEventListener('message', ({ data }) => listener(data));
      target.start?.();
    },
    onClose(listener) {
      target.addEventListener('close', () => listener());
      // A Worker that could not be started, or that has failed.
      target.addEventListener('error', ({ message }) => listener(message));
    },
    close: () => (target.terminate ?? target.close)?.call(target),
  };
}
