/** The HTTP application: its routes, and who may ask them. */
import { Hono } from 'hono';
import { cors } from 'hono/cors';
import type { Logger } from 'pino';
import type { Backend } from './backend.ts';
import { ApiError, toApiError } from './errors.ts';
import { type Authorize, createHandler, errorResponse } from './exchange.ts';
import { createJobs, type Jobs } from './jobs.ts';
import { defaultLimits, type Limits } from './limits.ts';
import { createMetrics } from './metrics.ts';
import { createNotices, NOTICE_HEADER } from './notices.ts';
import { createOpenApi } from './openapi.ts';
import { routesAt, suggestPath, wireOf } from './paths.ts';
import { createResponseStore } from './response-store.ts';
import type { Route } from './route.ts';
import { routes } from './routes.ts';
import { createKeyring, keyOf, OPERATOR, type TenantConfig } from './tenants.ts';
import { createToolCheck } from './tool-notices.ts';
import type { WebFiles } from './web-files.ts';
import { createPageRules, type PageRules } from './web-pages.ts';

export interface AppOptions {
  backend: Backend;
  /** Names of the model: the one that is shown first, then others. */
  names: readonly string[];
  /** Refuse other names. Default: they get the same model. */
  strictModel?: boolean;
  /** Tenants and their keys. Default: everybody may ask, and is one tenant. */
  tenants?: readonly TenantConfig[];
  limits?: Partial<Limits>;
  /** Origins of pages that may ask; `*`: all. Default: none. */
  cors?: readonly string[];
  /** Names and addresses by which the server may be asked without a key, besides those of this machine. */
  hosts?: readonly string[];
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
  /** Answers an operator's request: probes and metrics, without a key. */
  fetchForOperators(request: Request): Response | Promise<Response>;
  readonly jobs: Jobs;
}

export function createApp(options: AppOptions): App {
  const {
    backend,
    names,
    logger,
    slotPath,
    logRequests,
    logPrompts,
    heartbeatMs = 15_000,
    strictModel = false,
  } = options;
  const limits = { ...defaultLimits, ...options.limits };
  const metrics = createMetrics(names[0], backend);
  const jobs = createJobs(backend, limits, metrics, logger);
  const responses = createResponseStore(limits);
  const keyring = createKeyring(options.tenants ?? []);
  const pages = createPageRules({ hosts: options.hosts ?? [], cors: options.cors ?? [] });
  const openApi = createOpenApi(routes, limits, keyring.isRequired);
  const checkTools = createToolCheck();
  const notify = createNotices(logger);
  const shared = { backend, jobs, limits, metrics, names, responses, checkTools, slotPath };
  const exchange = { ...shared, notify, heartbeatMs, strictModel, logger };
  const handle = (route: Route, authorize: Authorize) =>
    createHandler({ ...exchange, logRequests, logPrompts }, route, authorize);

  const app = new Hono();
  const authorize: Authorize = (route, request) => {
    if (route.method !== 'get') pages.checkOrigin(request);
    return route.isPublic ? { name: 'public' } : keyring.tenantOf(keyOf(request.headers));
  };
  // A key is proof enough: a page has none.
  if (!keyring.isRequired) checkHosts(app, pages);
  refusePreflights(app, pages, logger);
  app.use(
    cors({
      origin: pages.origins,
      allowMethods: ['GET', 'POST', 'DELETE'],
      exposeHeaders: ['x-request-id', 'x-cache-difference', 'retry-after', NOTICE_HEADER],
      maxAge: 600,
    }),
  );
  for (const route of routes) app.on(route.method.toUpperCase(), route.path, handle(route, authorize));
  app.get('/openapi.json', handle({ ...openApiRoute, handle: ({ json }) => json(openApi) }, authorize));
  app.notFound(({ req }) => {
    const file = req.method === 'GET' || req.method === 'HEAD' ? options.web?.respond(req.raw) : undefined;
    if (file) return file;
    const known = routesAt(req.path).map(({ method }) => method.toUpperCase());
    const error =
      known.length > 0
        ? new ApiError(405, `${req.path} takes ${known.join(' or ')}, not ${req.method}.`)
        : new ApiError(404, `There is no ${req.path} here.${suggestPath(req.path)}`);
    return new Response(JSON.stringify(wireOf(req.path).error(error)), {
      status: error.status,
      headers: { 'content-type': 'application/json', ...(known.length > 0 && { allow: known.join(', ') }) },
    });
  });

  const operators = new Hono();
  checkHosts(operators, pages);
  for (const route of routes.filter(({ isForOperators }) => isForOperators))
    operators.get(
      route.path,
      handle(route, () => OPERATOR),
    );
  operators.notFound(({ req }) => {
    const paths = routes.filter(({ isForOperators }) => isForOperators).map(({ path }) => path);
    return errorResponse(
      new ApiError(404, `This port answers GET ${paths.join(', ')}, not ${req.method} ${req.path}.`),
    );
  });
  return {
    fetch: request => app.fetch(request),
    fetchForOperators: request => operators.fetch(request),
    jobs,
  };
}

/** Refuses requests to names that are not the server's. */
function checkHosts(app: Hono, pages: PageRules): void {
  app.use(({ req }, next) => {
    try {
      pages.checkHost(req.raw);
    } catch (error) {
      return Promise.resolve(errorResponse(toApiError(error), wireOf(req.path)));
    }
    return next();
  });
}

/** Origins whose refusal is logged. */
const MAX_LOGGED_ORIGINS = 16;

/** Refuses the preflights of pages that may not ask. Their users can read why in the log only. */
function refusePreflights(app: Hono, pages: PageRules, logger?: Logger): void {
  const logged = new Set<string>();
  app.options('*', ({ req }, next) => {
    try {
      pages.checkOrigin(req.raw);
    } catch (error) {
      const shown = toApiError(error);
      const origin = req.header('origin') ?? '';
      if (!logged.has(origin) && logged.size < MAX_LOGGED_ORIGINS) {
        logged.add(origin);
        logger?.warn({ origin }, shown.message);
      }
      return Promise.resolve(errorResponse(shown));
    }
    return next();
  });
}

const openApiRoute = { method: 'get', path: '/openapi.json', summary: 'This document.' } as const;
