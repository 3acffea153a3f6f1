/** The HTTP application: its routes, and what happens around each of them. */
import { randomUUID } from 'node:crypto';
import { type Context, Hono } from 'hono';
import { cors } from 'hono/cors';
import type { Logger } from 'pino';
import type { Backend } from './backend.ts';
import { readBody } from './body.ts';
import { type ApiError, anthropicError, invalidRequest, modelNotFound, openaiError, toApiError } from './errors.ts';
import { createJobs, type Jobs } from './jobs.ts';
import { defaultLimits, type Limits } from './limits.ts';
import { createMetrics } from './metrics.ts';
import { createOpenApi } from './openapi.ts';
import type { Exchange, Route } from './route.ts';
import { routes } from './routes.ts';
import { COMMENT_HEARTBEAT, formatEvent, sseResponse } from './sse.ts';
import { createKeyring, keyOf, type TenantConfig } from './tenants.ts';
import { createToolCheck } from './tool-notices.ts';
import type { WebFiles } from './web-files.ts';

export interface AppOptions {
  backend: Backend;
  /** Names of the model: the one that is shown first, then others that are accepted. */
  names: readonly string[];
  /** Tenants and their keys. Default: everybody may ask, and is one tenant. */
  tenants?: readonly TenantConfig[];
  limits?: Partial<Limits>;
  /** Origins of pages that may ask. Default: none. */
  cors?: readonly string[];
  /** The web app. Default: none is served. */
  web?: WebFiles;
  /** A folder for saved slots. Default: slots cannot be saved. */
  slotPath?: string;
  /** Milliseconds without an event after which a stream sends a heartbeat. Default: 15,000. */
  heartbeatMs?: number;
  logger?: Logger;
  /** Log a line per request. Default: false. */
  logRequests?: boolean;
  /** Log what users typed. Default: false. */
  logPrompts?: boolean;
}

export interface App {
  /** Answers a request. */
  fetch(request: Request): Response | Promise<Response>;
  readonly jobs: Jobs;
}

export function createApp(options: AppOptions): App {
  const { backend, names, logger, heartbeatMs = 15_000 } = options;
  const limits = { ...defaultLimits, ...options.limits };
  const metrics = createMetrics(names[0], backend);
  const jobs = createJobs(backend, limits, metrics, logger);
  const checkTools = createToolCheck();
  const keyring = createKeyring(options.tenants ?? []);
  const app = new Hono();
  const openApi = createOpenApi(routes, limits, keyring.isRequired);

  if (options.cors?.length)
    app.use(
      cors({
        origin: [...options.cors],
        allowMethods: ['GET', 'POST'],
        exposeHeaders: ['x-request-id', 'retry-after', NOTICE_HEADER],
        maxAge: 600,
      }),
    );

  /** Notices that the log has: clients repeat their tools in every request. */
  const logged = new Set<string>();
  const logNotice = (id: string, notice: string) => {
    if (logged.size < MAX_LOGGED && !logged.has(notice)) logger?.warn({ id }, notice);
    if (logged.size < MAX_LOGGED) logged.add(notice);
  };

  const errorResponse = (error: ApiError, isAnthropic: boolean | undefined, id: string): Response => {
    const { status, retryAfter, cause } = error;
    if (status >= 500) logger?.error({ id, err: cause ?? error }, error.message);
    return new Response(JSON.stringify(isAnthropic ? anthropicError(error) : openaiError(error)), {
      status,
      headers: {
        'content-type': 'application/json',
        ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
        // What is left of a body that is too large is not read.
        ...(status === 413 && { connection: 'close' }),
      },
    });
  };

  const handle = (route: Route) => {
    // Once: zod compiles a schema when it is first used.
    const schema = route.schema?.(limits);
    return async (context: Context) => {
      const id = randomUUID().replaceAll('-', '');
      const started = performance.now();
      const request = context.req.raw;
      const leave = followSignal(request.signal);
      const notices: string[] = [];
      let tenant: string | undefined;
      let body: unknown;
      let response: Response;
      const asError = (error: unknown): ApiError =>
        toApiError(error, backend.info?.context, path => route.fieldOf?.(path, body) ?? path);
      try {
        const owner = route.isPublic ? { name: 'public' } : keyring.tenantOf(keyOf(request.headers));
        tenant = owner.name;
        body = schema ? await readBody(request, schema, limits) : undefined;
        if (options.logPrompts && body !== undefined) logger?.info({ id, tenant, body }, 'prompt');
        const exchange: Exchange = {
          ...{ id, request, backend, jobs, limits, metrics, names, checkTools },
          tenant: owner,
          signal: leave.signal,
          slotPath: options.slotPath,
          param: name => context.req.param(name) ?? '',
          query: name => context.req.query(name),
          resolveModel(name) {
            if (name != null && !names.includes(name)) throw modelNotFound(name, names);
            return name ?? names[0];
          },
          notify(notice) {
            notices.push(notice);
            logNotice(id, notice);
          },
          json: (value, status = 200) =>
            new Response(JSON.stringify(value), { status, headers: { 'content-type': 'application/json' } }),
          stream: events =>
            sseResponse(events, {
              heartbeatMs,
              heartbeat: route.isAnthropic ? formatEvent({ type: 'ping' }, 'ping') : COMMENT_HEARTBEAT,
              formatError(error) {
                const shown = asError(error);
                if (shown.status >= 500) logger?.error({ id, err: shown.cause ?? shown }, shown.message);
                return formatEvent(route.isAnthropic ? anthropicError(shown) : openaiError(shown), 'error');
              },
              onLeave: () => leave.abort(),
            }),
        };
        response = await route.handle(exchange, body);
      } catch (error) {
        response = errorResponse(asError(error), route.isAnthropic, id);
      }
      response.headers.set('x-request-id', id);
      if (notices.length > 0) response.headers.set(NOTICE_HEADER, headerText(notices.join(' ')));
      if (route.isAnthropic) response.headers.set('request-id', id);
      if (options.logRequests)
        logger?.info(
          {
            ...{ id, tenant, method: route.method, path: route.path, status: response.status },
            ms: Math.round(performance.now() - started),
          },
          'request',
        );
      return response;
    };
  };

  for (const route of routes) app.on(route.method.toUpperCase(), route.path, handle(route));
  app.get('/openapi.json', handle({ ...openApiRoute, handle: ({ json }) => json(openApi) }));
  app.notFound(({ req }) => {
    const file = req.method === 'GET' || req.method === 'HEAD' ? options.web?.respond(req.raw) : undefined;
    if (file) return file;
    const known = routes.filter(({ path }) => path === req.path).map(({ method }) => method.toUpperCase());
    const error = invalidRequest(
      known.length > 0
        ? `${req.path} takes ${known.join(' or ')}, not ${req.method}.`
        : `There is no ${req.path} here.${suggestion(req.path)}`,
    );
    return new Response(JSON.stringify(openaiError(error)), {
      status: known.length > 0 ? 405 : 404,
      headers: { 'content-type': 'application/json', ...(known.length > 0 && { allow: known.join(', ') }) },
    });
  });
  return { fetch: request => app.fetch(request), jobs };
}

const NOTICE_HEADER = 'x-kvasir-notice';
const MAX_NOTICE = 2000;
const MAX_LOGGED = 1000;

/** Headers are ASCII. */
const headerText = (text: string): string =>
  text.slice(0, MAX_NOTICE).replace(/[^ -~]/g, letter => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);

/**
 * Aborts with the signal, or earlier. A function of its own, so that the listener does not hold the request: Node keeps the
 * signal until the request is collected, which would then never be.
 */
function followSignal(signal: AbortSignal): AbortController {
  const follower = new AbortController();
  signal.addEventListener('abort', () => follower.abort());
  return follower;
}

/** Clients often have a base URL without its /v1, or with two. */
function suggestion(path: string): string {
  const meant = routes.find(route => route.path.endsWith(path) || path.endsWith(route.path));
  return meant && path !== '/' ? ` Did you mean ${meant.path}?` : ' GET /openapi.json lists what there is.';
}

const openApiRoute = { method: 'get', path: '/openapi.json', summary: 'This document.' } as const;
