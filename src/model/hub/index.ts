/**
 * `kvasir/hub`: downloads GGUF models from the Hugging Face hub and manages the local cache, which is shared with Python's
 * huggingface_hub. Node only.
 */
export { cacheDir, type Env } from './cache.ts';
export { type CachedModel, type ListOptions, listModels } from './list-models.ts';
export { type ModelName, parseModelName, parseQuant } from './name.ts';
export { type PulledFile, type PullOptions, type PullProgress, type PullResult, pull } from './pull.ts';
export { planRemoval, type Removal, type RemoveOptions, removeModel } from './remove.ts';
export { type ResolvedModel, type ResolveOptions, resolveModel } from './resolve.ts';
