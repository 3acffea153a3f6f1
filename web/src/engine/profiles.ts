/**
 * Profiles of models in this browser, with which they can have calibrated codecs: looked for beside the model, as
 * `kvasir pull` does, and kept for the next visit.
 */
import type { BrowserModel } from './browser.ts';
import { readSource } from './storage.ts';

const CACHE = 'kvasir-models';
const FOLDER = './profiles/';

/** The profile that was given with the model, that was kept, or that is beside it on its host. */
export async function findProfile(model: BrowserModel, signal?: AbortSignal): Promise<Blob | undefined> {
  if (model.profile) return model.profile;
  return (await findKeptProfile(model)) ?? ('url' in model ? await fetchBeside(model.url, signal) : undefined);
}

export async function findKeptProfile(model: BrowserModel): Promise<Blob | undefined> {
  const [cache, key] = [await openCache(), await keyOf(model)];
  const kept = key === undefined ? undefined : await cache?.match(key);
  return kept?.blob();
}

/** Beside a stored model; of one that is not stored, nothing is kept. */
export async function keepProfile(model: BrowserModel, profile: Blob): Promise<void> {
  if ('file' in model && !model.isKept) return;
  const [cache, key] = [await openCache(), await keyOf(model)];
  if (key) await cache?.put(key, new Response(profile));
}

export async function deleteProfile(model: BrowserModel): Promise<void> {
  const [cache, key] = [await openCache(), await keyOf(model)];
  if (key) await cache?.delete(key);
}

export async function deleteAllProfiles(): Promise<void> {
  const cache = await openCache();
  const folder = new URL(FOLDER, document.baseURI).href;
  for (const { url } of (await cache?.keys()) ?? []) if (url.startsWith(folder)) await cache!.delete(url);
}

/** Without https there are no caches. */
const openCache = async (): Promise<Cache | undefined> => globalThis.caches?.open(CACHE);

/** By where the model comes from, which is the same before and after it is stored. */
async function keyOf(model: BrowserModel): Promise<string | undefined> {
  const source = await sourceOf(model);
  return source && new URL(`${FOLDER}${encodeURIComponent(source)}`, document.baseURI).href;
}

async function sourceOf(model: BrowserModel): Promise<string | undefined> {
  if ('path' in model) return readSource(model.path);
  if ('url' in model) return new URL(model.url, document.baseURI).href;
  return `${model.file.name} ${model.file.size} ${model.file.lastModified}`;
}

/** For `model.gguf`: `model.kvprofile`, else `model.gguf.kvprofile`. */
async function fetchBeside(model: string, signal?: AbortSignal): Promise<Blob | undefined> {
  for (const stem of [/\.gguf$/i, /$/]) {
    const url = new URL(model, document.baseURI);
    url.pathname = url.pathname.replace(stem, '.kvprofile');
    const response = await fetch(url, { signal }).catch(() => undefined);
    // Some hosts answer with a page for what they do not have.
    if (response?.ok && !/text\/html/.test(response.headers.get('content-type') ?? '')) return response.blob();
  }
  return undefined;
}
