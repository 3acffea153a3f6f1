/**
 * Downloads GGUF models and their profiles from the Hugging Face hub and manages the local cache, which is shared with
 * Python's huggingface_hub. Node only: package.json replaces this file by hub-browser.ts in bundles for browsers.
 */
export { cacheDir, type Env } from './hub/cache.ts';
export { type CachedModel, type ListOptions, listModels } from './hub/list-models.ts';
export { type ModelName, parseModelName, parseQuant } from './hub/name.ts';
export type { HubOptions, PulledFile, PullProgress } from './hub/pull.ts';
export { planRemoval, type Removal, type RemoveOptions, removeModel } from './hub/remove.ts';
export { type ResolvedModel, type ResolveOptions, resolveModel } from './hub/resolve.ts';
export { type PullOptions, type PullResult, pull } from './plan/pull.ts';
