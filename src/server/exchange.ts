/** One request from its headers to the end of its answer: who asks, its body, its errors, its line in the log. */
import { randomUUID } from 'node:crypto';
import type { Context } from 'hono';
import type { Logger } from 'pino';
import { readBody } from './body.ts';
import { type ApiError, fieldOfOption, modelNotFound, toApiError } from './errors.ts';
import type { AnswerCounts } from './metrics.ts';
import type { Notify } from './notices.ts';
import type { Exchange, Route } from './route.ts';
import { sseResponse } from './sse.ts';
import type { Tenant } from './tenants.ts';
import { anthropicWire, openaiWire, type Wire } from './wire.ts';

/** What all requests of a server have in common. */
export interface ExchangeOptions
  extends Pick<
    Exchange,
    'backend' | 'jobs' | 'limits' | 'metrics' | 'names' | 'responses' | 'checkTools' | 'slotPath'
  > {
  notify: Notify;
  heartbeatMs: number;
  /** Whether other names of the model than `names` are refused. */
  strictModel: boolean;
  logger?: Logger;
  logRequests?: boolean;
  logPrompts?: boolean;
}

/** Who asks; throws if it may not. */
export type Authorize = (route: Route, request: Request) => Tenant;

export type Handle = (context: Context) => Promise<Response>;

/** Answers the requests of a route. */
export function createHandler(options: ExchangeOptions, route: Route, authorize: Authorize): Handle {
  const { backend, jobs, limits, metrics, names, responses, checkTools, logger } = options;
  const { wire = openaiWire } = route;
  const isAnthropic = wire === anthropicWire;
  // Once: zod compiles a schema when it is first used.
  const schema = route.schema?.(limits);

  return async context => {
    const id = randomUUID().replaceAll('-', '');
    const started = performance.now();
    const request = context.req.raw;
    const leave = followSignal(request.signal);
    const answers: AnswerCounts[] = [];
    let tenant: string | undefined;
    let body: unknown;
    let isStreaming = false;

    const headers = new Headers({ 'x-request-id': id });
    if (isAnthropic) headers.set('request-id', id);
    const fieldOf = (path: string) => fieldOfOption(route.fieldOf?.(path, body) ?? path);
    const toError = (error: unknown): ApiError => {
      const shown = toApiError(error, { context: backend.info?.context, fieldOf, promptField: route.promptField });
      if (shown.status >= 500) logger?.error({ id, err: shown.cause ?? shown }, shown.message);
      return shown;
    };
    const log = (status: number) => {
      if (!options.logRequests) return;
      const { method, path } = route;
      const ms = Math.round(performance.now() - started);
      logger?.info({ id, tenant, method, path, status, ms, ...tokensOf(answers) }, 'request');
    };

    const answer = async (): Promise<Response> => {
      const owner = authorize(route, request);
      tenant = owner.name;
      body = schema ? await readBody(request, schema, limits) : undefined;
      if (options.logPrompts && body !== undefined) logger?.info({ id, tenant, body }, 'prompt');
      return route.handle(
        {
          ...{ id, request, backend, jobs, limits, metrics, names, responses, checkTools, headers, fieldOf, toError },
          tenant: owner,
          signal: leave.signal,
          slotPath: options.slotPath,
          param: name => context.req.param(name) ?? '',
          query: name => context.req.query(name),
          resolveModel(name) {
            if (name == null || names.includes(name)) return name ?? names[0];
            if (options.strictModel) throw modelNotFound(name, names);
            return names[0];
          },
          notify: notice => options.notify(id, headers, notice),
          json: (value, status = 200) =>
            new Response(JSON.stringify(value), { status, headers: { 'content-type': 'application/json' } }),
          async stream(events) {
            const response = await sseResponse(events, {
              contentType: wire.contentType,
              heartbeatMs: options.heartbeatMs,
              heartbeat: wire.heartbeat,
              formatError: error => wire.errorEvent(toError(error)),
              onLeave: () => leave.abort(),
              onEnd: () => log(200),
            });
            isStreaming = true;
            return response;
          },
          onAnswer: counts => answers.push(counts),
        },
        body,
      );
    };

    const response = await answer().catch(error => errorResponse(toError(error), wire));
    for (const [name, value] of headers) response.headers.set(name, value);
    if (!isStreaming) log(response.status);
    return response;
  };
}

export function errorResponse(error: ApiError, wire: Wire = openaiWire): Response {
  const { status, retryAfter } = error;
  return new Response(JSON.stringify(wire.error(error)), {
    status,
    headers: {
      'content-type': 'application/json',
      ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
      // What is left of a body that is too large is not read.
      ...(status === 413 && { connection: 'close' }),
    },
  });
}

/** Tokens of a request's answers, which share their prompt. */
function tokensOf(answers: readonly AnswerCounts[]) {
  if (answers.length === 0) return {};
  const [{ prompt, reused }] = answers;
  return {
    promptTokens: prompt,
    cachedTokens: reused,
    tokens: answers.reduce((sum, { generated }) => sum + generated, 0),
  };
}

/**
 * Aborts with the signal, or earlier. A function of its own, so that the listener does not hold the request: Node keeps the
 * signal until the request is collected, which would then never be.
 */
function followSignal(signal: AbortSignal): AbortController {
  const follower = new AbortController();
  signal.addEventListener('abort', () => follower.abort());
  return follower;
}
