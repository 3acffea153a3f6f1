/** GET /status: the model, its cache and what runs, as JSON for pages. */
import type { Route } from './route.ts';

export const status: Route = {
  method: 'get',
  path: '/status',
  summary: 'The model, its device and codec, the bytes of its cache, and what runs.',
  async handle({ backend, jobs, names, json }) {
    const state = jobs.isDraining ? 'draining' : backend.state;
    const { info, reason, service } = backend;
    const stats = state === 'ready' ? await service?.stats() : undefined;
    return json({
      status: state,
      ...(reason && { reason }),
      model: names[0],
      ...(info && { info }),
      ...(stats && { stats }),
    });
  },
};
