/** GET /health, /ready and /metrics: for probes and Prometheus. */
import type { Route } from './route.ts';

/** Says that the process lives, whatever the engine does. */
export const health: Route = {
  method: 'get',
  path: '/health',
  summary: 'The process lives. Needs no key.',
  isPublic: true,
  handle: ({ json }) => json({ status: 'ok' }),
};

export const ready: Route = {
  method: 'get',
  path: '/ready',
  summary: 'Whether requests are answered now: 200, or 503 with the state.',
  handle({ backend: { state, reason, restarts }, jobs, json }) {
    const shown = jobs.isDraining ? 'draining' : state;
    return json({ status: shown, ...(reason && { reason }), restarts }, shown === 'ready' ? 200 : 503);
  },
};

export const metricsRoute: Route = {
  method: 'get',
  path: '/metrics',
  summary: "Metrics for Prometheus, with vLLM's names.",
  handle: async ({ metrics }) =>
    new Response(await metrics.render(), { headers: { 'content-type': metrics.contentType } }),
};
