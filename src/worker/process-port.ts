/** The port between a process and its child, at both ends. */
import type { ChildProcess } from 'node:child_process';
import type { Port } from './protocol.ts';

/** The parent's end. It keeps the parent alive only while it is active. */
export function portToChild(child: ChildProcess): Port {
  return {
    ...portTo(child),
    onClose(listener) {
      child.on('exit', (code, signal) => listener(signal ? `signal ${signal}` : `exit code ${code}`));
      // It could not be started.
      child.on('error', error => listener(error.message));
    },
    setActive(isActive) {
      for (const handle of [child, child.channel, child.stdout as PipeHandle | null, child.stderr as PipeHandle | null])
        if (isActive) handle?.ref();
        else handle?.unref();
    },
  };
}

/** Pipes are sockets. */
type PipeHandle = { ref(): void; unref(): void };

/** The child's end. */
export const portToParent = (): Port => ({
  ...portTo(process as unknown as ChildProcess),
  onClose: listener => void process.on('disconnect', () => listener()),
});

function portTo(target: ChildProcess): Omit<Port, 'onClose'> {
  return {
    post(message) {
      // Without a callback, a message to a process that has just ended is an uncaught error.
      if (target.connected) target.send(message as object, () => {});
    },
    onMessage: listener => void target.on('message', listener),
    close() {
      if (target.connected) target.disconnect();
    },
  };
}
