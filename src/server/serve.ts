/** An app on a port: time-outs against slow clients, and an orderly end. */
import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { serve } from '@hono/node-server';
import { InputError } from '../util/errors.ts';
import type { Jobs } from './jobs.ts';

export interface ListenOptions {
  host: string;
  /** 0: any free one. */
  port: number;
  /** Milliseconds that a request may take. */
  requestMs: number;
}

export interface HttpServer {
  readonly url: string;
  /** Refuses new requests and resolves when the running ones have ended. */
  drain(): Promise<void>;
  /** Cancels what runs, and closes all connections. */
  stop(): Promise<void>;
}

const MAX_HEADER_BYTES = 16 * 1024;

/** What listens: `jobs` are drained or cancelled before it ends. */
export interface Listener {
  fetch(request: Request): Response | Promise<Response>;
  jobs?: Pick<Jobs, 'drain' | 'abort'>;
}

export async function listen(app: Listener, { host, port, requestMs }: ListenOptions): Promise<HttpServer> {
  const server = await new Promise<Server>((resolve, reject) => {
    const started = serve(
      {
        fetch: app.fetch,
        hostname: host,
        port,
        serverOptions: {
          maxHeaderSize: MAX_HEADER_BYTES,
          headersTimeout: 20_000,
          // For the request itself; its answer may take longer.
          requestTimeout: 120_000,
          // Longer than load balancers keep a connection, so that they close it first.
          keepAliveTimeout: 75_000,
        },
      },
      () => resolve(started as Server),
    ) as Server;
    started.once('error', error => reject(listenError(error, host, port)));
  });
  // A client that neither reads nor leaves.
  server.setTimeout(requestMs + 30_000);
  // Node counts a connection as idle only after its first request.
  const unused = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    unused.add(socket);
    socket.once('close', () => unused.delete(socket));
  });
  server.on('request', ({ socket }) => unused.delete(socket));
  const address = server.address();
  const bound = typeof address === 'object' && address ? address.port : port;
  const close = () =>
    new Promise<void>(resolve => {
      server.close(() => resolve());
      server.closeIdleConnections();
      for (const socket of unused) socket.destroy();
    });
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${bound}`,
    async drain() {
      const ended = app.jobs?.drain();
      const closed = close();
      await ended;
      // Answers are written out before their connections are closed.
      await new Promise(resolve => setTimeout(resolve, 100));
      server.closeIdleConnections();
      await closed;
    },
    async stop() {
      app.jobs?.abort();
      const closed = close();
      server.closeAllConnections();
      await closed;
    },
  };
}

function listenError(error: NodeJS.ErrnoException, host: string, port: number): Error {
  if (error.code === 'EADDRINUSE')
    return new InputError(`Port ${port} is in use. Choose another one with --port, or 0 for any that is free.`);
  if (error.code === 'EACCES') return new InputError(`Port ${port} is not allowed for this user. Use one above 1023.`);
  if (error.code === 'EADDRNOTAVAIL' || error.code === 'ENOTFOUND')
    return new InputError(`${host} is not an address of this machine. Use 127.0.0.1, or 0.0.0.0 for all.`);
  return error;
}
