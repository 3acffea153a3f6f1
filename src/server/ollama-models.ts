/** GET /api/tags, /api/ps and /api/version, POST /api/show: the model as clients of Ollama look for it. */
import { createHash } from 'node:crypto';
import type { ServiceInfo } from '../worker/service.ts';
import { type OllamaShowRequest, ollamaShowSchema } from './ollama-schemas.ts';
import type { Exchange, Route } from './route.ts';
import { ollamaWire } from './wire.ts';

/** The version whose API these routes follow: clients refuse older ones. */
const API_VERSION = '0.13.4';

const wire = ollamaWire({});
const started = new Date().toISOString();

/** The served name; Ollama's clients may add a tag. */
export function resolveOllamaModel({ names, resolveModel }: Exchange, model: string): string {
  return resolveModel(names.includes(model) ? model : model.replace(/:latest$/, ''));
}

const detailsOf = (info?: ServiceInfo) => ({
  parent_model: '',
  format: 'gguf',
  family: info?.architecture ?? '',
  families: info ? [info.architecture] : [],
  parameter_size: '',
  quantization_level: '',
});

/** The file is not read for its digest: programs print it, and want 64 digits that change with the model. */
const describe = (name: string, { backend: { info } }: Exchange) => ({
  name,
  model: name,
  size: info?.weightBytes ?? 0,
  digest: createHash('sha256').update(`${name} ${info?.modelName} ${info?.weightBytes}`).digest('hex'),
  details: detailsOf(info),
});

export const ollamaTags: Route = {
  method: 'get',
  path: '/api/tags',
  summary: "The names of the model in the format of Ollama's API.",
  wire,
  handle: exchange =>
    exchange.json({ models: exchange.names.map(name => ({ ...describe(name, exchange), modified_at: started })) }),
};

export const ollamaRunning: Route = {
  method: 'get',
  path: '/api/ps',
  summary: 'The model that is loaded, which it always is.',
  wire,
  handle: exchange =>
    exchange.json({
      models: exchange.names.slice(0, 1).map(name => ({
        ...describe(name, exchange),
        expires_at: '9999-12-31T00:00:00Z',
        size_vram: 0,
        context_length: exchange.backend.info?.context ?? 0,
      })),
    }),
};

export const ollamaShow: Route<OllamaShowRequest> = {
  method: 'post',
  path: '/api/show',
  summary: "The model's architecture, context and capabilities.",
  schema: ollamaShowSchema,
  wire,
  handle(exchange, { model, name }) {
    resolveOllamaModel(exchange, model ?? name ?? exchange.names[0]);
    const { info } = exchange.jobs.service();
    return exchange.json({
      modelfile: '',
      // Some clients read the context from here, others from `model_info`.
      parameters: `num_ctx                        ${info.context}`,
      template: '',
      details: detailsOf(info),
      model_info: {
        'general.architecture': info.architecture,
        'general.name': info.modelName,
        [`${info.architecture}.context_length`]: info.context,
      },
      capabilities: ['completion', 'tools', ...(info.infill ? ['insert'] : []), ...(info.thinks ? ['thinking'] : [])],
      modified_at: started,
    });
  },
};

export const ollamaVersion: Route = {
  method: 'get',
  path: '/api/version',
  summary: "The version of Ollama's API that is followed.",
  wire,
  handle: ({ json }) => json({ version: API_VERSION }),
};
