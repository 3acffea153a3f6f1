/** GET /v1/models. */
import { modelNotFound } from './errors.ts';
import type { Exchange, Route } from './route.ts';

const STARTED = Math.floor(Date.now() / 1000);

/** `max_model_len` is vLLM's. Anthropic's clients read `type` and `display_name`. */
const describe = (id: string, { backend, names }: Exchange) => ({
  id,
  object: 'model',
  created: STARTED,
  owned_by: 'kvasir',
  root: names[0],
  max_model_len: backend.info?.context,
  type: 'model',
  display_name: backend.info?.modelName ?? id,
  created_at: new Date(STARTED * 1000).toISOString(),
});

export const models: Route = {
  method: 'get',
  path: '/v1/models',
  summary: 'The names of the model.',
  handle: exchange =>
    exchange.json({ object: 'list', data: exchange.names.map(name => describe(name, exchange)), has_more: false }),
};

export const model: Route = {
  method: 'get',
  // Names may have slashes.
  path: '/v1/models/:id{.+}',
  summary: 'One of the names.',
  handle(exchange) {
    const id = exchange.param('id');
    if (!exchange.names.includes(id)) throw modelNotFound(id, exchange.names);
    return exchange.json(describe(id, exchange));
  },
};
