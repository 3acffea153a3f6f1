/** The library in a Web Worker as an engine: a model in this browser. */
import { type RemoteService, startWorker } from 'kvasir/worker';
import { texts } from '../texts/index.ts';
import { isPreset } from './codecs.ts';
import {
  type AnswerEnd,
  type AnswerPart,
  type AskOptions,
  type Engine,
  EngineError,
  type LoadProgress,
  type ModelInfo,
  type ScoredToken,
  type Turn,
} from './engine.ts';
import { fileNameOf, modelTitle } from './model-names.ts';
import { createSessions, MAX_OPEN } from './sessions.ts';
import { canStore, openStoredModel } from './storage.ts';

/**
 * A file that the user has chosen, and whether it is to be stored; the address of one, which is stored if the page can; or the path of one
 * that is. `profile`: one that the user has chosen.
 */
export type BrowserModel = ({ file: File; isKept?: boolean } | { url: string } | { path: string }) & { profile?: Blob };

export interface BrowserOptions {
  /** Default: Mimir, which comes with the app. */
  model?: BrowserModel;
  /** Of the model; Mimir's comes with it. */
  profile?: Blob;
  device: string;
  /** A preset, or the spec of a codec. */
  codec: string;
  onProgress?: (progress: LoadProgress) => void;
  /** Stops loading. */
  signal?: AbortSignal;
}

/** How many of the most likely tokens are returned. */
const TOP = 10;

const MIMIR = { model: './models/mimir.gguf', profile: './models/mimir.kvprofile' };

export async function openBrowser(options: BrowserOptions): Promise<Engine> {
  const { model, profile, device, codec, onProgress, signal } = options;
  const service = await start(model, {
    profile,
    ...(isPreset(codec) ? { quality: codec } : { kv: codec }),
    device: device as 'auto',
    signal,
    onProgress,
  }).catch((error: Error) => {
    if (error instanceof EngineError) throw error;
    throw new EngineError(error.message, NOT_A_MODEL.includes(error.name) ? 'model' : 'failed');
  });
  const textOf = createTexts(service);
  const sessions = createSessions(service);
  /** Answers that run, and when they have ended. */
  const running = new Map<AbortController, Promise<void>>();
  let isClosing = false;
  return {
    info: describe(service, model),
    async *ask(turns, options) {
      const { conversation } = options;
      const slot = conversation === undefined ? undefined : await sessions.slotOf(conversation);
      const abort = new AbortController();
      const onAbort = () => abort.abort();
      options.signal.addEventListener('abort', onAbort);
      if (options.signal.aborted) onAbort();
      let end = () => {};
      const ended = new Promise<void>(resolve => {
        end = resolve;
      });
      running.set(abort, ended);
      try {
        return yield* ask(service, textOf, turns, { ...options, signal: abort.signal, slot });
      } catch (error) {
        if ((error as Error).name === 'ContextError') throw new EngineError(texts.messages.full, 'full');
        throw error;
      } finally {
        options.signal.removeEventListener('abort', onAbort);
        running.delete(abort);
        end();
      }
    },
    keep: async conversation => (isClosing ? undefined : sessions.save(conversation)),
    countTokens: async text => (await service.tokenize(text)).length,
    async cacheUse() {
      const { capacity, used, cachedBytes } = await service.stats();
      return { capacity, used, reusable: cachedBytes };
    },
    ended: service.ended,
    async close() {
      isClosing = true;
      // Answers that run are stopped, and can go on with another model.
      for (const abort of running.keys()) abort.abort();
      await Promise.race([Promise.all(running.values()), service.ended]);
      await service.close();
    },
  };
}

/** Errors of the library about the file itself: it will not run the next time either. */
const NOT_A_MODEL: readonly string[] = ['FormatError', 'UnsupportedError'];

async function start(model: BrowserModel | undefined, options: Parameters<typeof startWorker>[1]) {
  if (!model) return startWorker(await fetchFile(MIMIR.model), { ...options, profile: await fetchFile(MIMIR.profile) });
  // What comes from the network is kept for the next visit.
  if ('url' in model) return startWorker(model.url, { ...options, store: canStore });
  if ('file' in model) return startWorker(model.file, { ...options, store: model.isKept });
  return startWorker(await openStoredModel(model.path), options);
}

/** A file of the app, kept for visits without a network. */
async function fetchFile(path: string): Promise<Blob> {
  // Without https there are no caches.
  const cache = await globalThis.caches?.open('kvasir-models');
  const url = new URL(path, document.baseURI).href;
  try {
    const response = await fetch(url);
    if (!response.ok) throw new EngineError(texts.connection.noFile(url, response.status));
    await cache?.put(url, response.clone()).catch(() => {});
    return await response.blob();
  } catch (error) {
    const kept = await cache?.match(url);
    if (kept) return kept.blob();
    if (error instanceof EngineError) throw error;
    throw new EngineError(texts.connection.noMimir(location.host), 'lost');
  }
}

/** The name of a model's file; Mimir's is its own. */
export function fileOf(model: BrowserModel | undefined): string {
  if (model === undefined) return 'Mimir';
  return 'file' in model ? model.file.name : fileNameOf('path' in model ? model.path : model.url);
}

function describe({ info }: RemoteService, model: BrowserModel | undefined): ModelInfo {
  const { modelName, architecture, kv, kvBits, expectedDivergence, device, maxSequences, ...rest } = info;
  return {
    ...rest,
    name: modelTitle(fileOf(model), modelName ?? architecture),
    id: fileOf(model),
    device: device.name,
    threads: device.threads,
    deviceReason: device.why,
    codec: kv,
    bits: kvBits,
    maxAnswers: Math.min(maxSequences, MAX_OPEN),
    divergence: expectedDivergence,
  };
}

/** The texts of tokens, by id. */
function createTexts(service: RemoteService) {
  const texts = new Map<number, string>();
  const decoder = new TextDecoder();
  return async (ids: readonly number[]): Promise<ReadonlyMap<number, string>> => {
    const missing = [...new Set(ids)].filter(id => !texts.has(id));
    const found = missing.length > 0 ? await service.tokenBytes(missing) : [];
    for (const [i, bytes] of found.entries()) texts.set(missing[i]!, decoder.decode(bytes));
    return texts;
  };
}

async function* ask(
  service: RemoteService,
  textOf: ReturnType<typeof createTexts>,
  turns: readonly Turn[],
  { scored, thinks, onPrefill, conversation: _, ...options }: AskOptions & { slot?: number },
): AsyncGenerator<AnswerPart, AnswerEnd, void> {
  const stream = service.answer(turns, {
    ...options,
    ...(scored && { logprobs: TOP }),
    ...(thinks !== undefined && { render: { variables: { enable_thinking: thinks } } }),
    onPrefill: ({ done, total }) => onPrefill?.(done, total),
  });
  for await (const { text = '', reasoning = '', tokens } of stream) {
    const ids = scored ? tokens.flatMap(({ id, top = [] }) => [id, ...top.map(other => other.id)]) : [];
    const texts = await textOf(ids);
    const toScored = ({ id, logprob = 0, top = [] }: (typeof tokens)[number]): ScoredToken => ({
      text: texts.get(id) ?? '',
      logprob,
      top: top.map(other => ({ text: texts.get(other.id) ?? '', logprob: other.logprob })),
    });
    yield { text, reasoning, tokens: tokens.length, scored: scored ? tokens.map(toScored) : [] };
  }
  const { finish, isLoop, usage } = stream.partial;
  return { finish: isLoop ? 'loop' : finish === 'tool_calls' ? 'stop' : finish, usage };
}
