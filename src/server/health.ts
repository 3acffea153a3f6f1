/** GET /live, /health, /ready and /metrics: for probes and Prometheus. */
import type { Backend } from './backend.ts';
import { operatorsOnly } from './errors.ts';
import type { Jobs } from './jobs.ts';
import type { Route } from './route.ts';

/** `ready` if requests are answered now, or why not. */
const stateOf = ({ state }: Backend, { isDraining }: Jobs): string => (isDraining ? 'draining' : state);

const statusOf = (state: string): number => (state === 'ready' ? 200 : 503);

/** Says that the process lives, whatever the engine does: only a process that is not needs to be started again. */
export const live: Route = {
  method: 'get',
  path: '/live',
  summary: 'The process lives. Needs no key.',
  ...{ isPublic: true, isForOperators: true },
  handle: ({ json }) => json({ status: 'ok' }),
};

/** As llama.cpp's server has it: scripts and load balancers wait for it. */
export const health: Route = {
  method: 'get',
  path: '/health',
  summary: 'Whether requests are answered now: 200, or 503 while the model loads. Needs no key.',
  ...{ isPublic: true, isForOperators: true },
  handle({ backend, jobs, json }) {
    const state = stateOf(backend, jobs);
    return json({ status: state === 'ready' ? 'ok' : state }, statusOf(state));
  },
};

export const ready: Route = {
  method: 'get',
  path: '/ready',
  summary: 'As `/health`, with the reason of a restart and the number of restarts.',
  isForOperators: true,
  handle({ backend, jobs, json }) {
    const state = stateOf(backend, jobs);
    const { reason, restarts } = backend;
    return json({ status: state, ...(reason && { reason }), restarts }, statusOf(state));
  },
};

export const metricsRoute: Route = {
  method: 'get',
  path: '/metrics',
  summary: "Metrics for Prometheus, with vLLM's names. For operators.",
  isForOperators: true,
  async handle({ metrics, tenant }) {
    if (!tenant.operator) throw operatorsOnly();
    return new Response(await metrics.render(), { headers: { 'content-type': metrics.contentType } });
  },
};
