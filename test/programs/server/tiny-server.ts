/** A server on a tiny random model, in this process. */
import { afterAll } from 'vitest';
import { loadModel } from '../../../src/api/model.ts';
import { type App, type AppOptions, createApp } from '../../../src/server/app.ts';
import { readyBackend } from '../../../src/server/backend.ts';
import { createService } from '../../../src/worker/create-service.ts';
import type { ModelService } from '../../../src/worker/service.ts';
import { writeGguf } from '../../support/gguf-writer.ts';
import { type TinyOptions, tinyModel } from '../../support/tiny-model.ts';

// biome-ignore lint/suspicious/noExplicitAny: the JSON of an answer, which the tests compare
export type Json = any;

export interface TinyServer {
  app: App;
  service: ModelService;
  /** Sends a JSON body, or none with GET. */
  ask(path: string, body?: unknown, headers?: Record<string, string>): Promise<Response>;
  /** As `ask`, and returns the JSON of the answer. */
  json(path: string, body?: unknown, headers?: Record<string, string>): Promise<Json>;
}

const tiny = (options: TinyOptions = {}) =>
  new Blob([writeGguf(tinyModel({ tied: false, layers: 1, context: 2048, ...options }))]);

export async function openService(maxSequences = 8, options?: TinyOptions): Promise<ModelService> {
  const service = createService(
    await loadModel(tiny(options), { device: 'wasm', threads: 1, kv: 'tq4', maxSequences }),
  );
  afterAll(() => service.close());
  return service;
}

/** A service can have several apps. */
export async function openServer(options: Partial<AppOptions> = {}, service?: ModelService): Promise<TinyServer> {
  const used = service ?? (await openService());
  const app = createApp({ backend: readyBackend(used), names: ['tiny', 'alias', 'tiny.gguf'], ...options });
  const ask: TinyServer['ask'] = async (path, body, headers) =>
    app.fetch(
      new Request(`http://localhost${path}`, {
        ...(body !== undefined && { method: 'POST', body: typeof body === 'string' ? body : JSON.stringify(body) }),
        headers: { 'content-type': 'application/json', ...headers },
      }),
    );
  return { app, service: used, ask, json: async (...request) => (await ask(...request)).json() };
}

/** The data of the events of a stream; heartbeats are left out. */
export async function readEvents(response: Response): Promise<Json[]> {
  const text = await response.text();
  return text
    .split('\n\n')
    .map(event => event.match(/^data: (.*)$/m)?.[1])
    .filter(data => data !== undefined)
    .map(data => (data === '[DONE]' ? data : JSON.parse(data)));
}

export const user = (content: string) => [{ role: 'user', content }];

/** Greedy, and of this length: a random model may end at any time. */
export const greedy = (maxTokens: number) => ({ temperature: 0, max_tokens: maxTokens, ignore_eos: true });
