/** GET /status: the model, its cache and what runs, as JSON for pages. */
import type { Route } from './route.ts';

export const status: Route = {
  method: 'get',
  path: '/status',
  summary: 'The model, its device and codec; for operators also the bytes of its cache, and what runs.',
  isForOperators: true,
  async handle({ backend, jobs, names, tenant, json }) {
    const state = jobs.isDraining ? 'draining' : backend.state;
    const { info, reason, service } = backend;
    // Of all tenants together.
    const stats = state === 'ready' && tenant.operator ? await service?.stats() : undefined;
    return json({
      status: state,
      ...(reason && { reason }),
      model: names[0],
      ...(info && { info }),
      ...(stats && { stats }),
    });
  },
};
