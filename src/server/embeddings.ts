/** POST /v1/embeddings and /api/embed: refused, with the reason. */
import { ApiError } from './errors.ts';
import type { Route } from './route.ts';
import { ollamaWire } from './wire.ts';

const refuse = (): never => {
  throw new ApiError(
    501,
    'This server has no embeddings: it runs chat models, whose hidden states were not trained to be compared. Use a model ' +
      'for embeddings, on another server.',
    { code: 'not_supported' },
  );
};

export const embeddings: Route = {
  method: 'post',
  path: '/v1/embeddings',
  summary: 'Not supported: chat models have no embeddings.',
  handle: refuse,
};

export const ollamaEmbed: Route = { ...embeddings, path: '/api/embed', wire: ollamaWire({}) };

export const ollamaEmbeddings: Route = { ...ollamaEmbed, path: '/api/embeddings' };
