/** Getting models: names to files, from disk, from the shared hub cache, from the hub. */
export { cacheDir, cachedSha256 } from './cache.ts';
export { type CachedModel, cachedModels } from './cached.ts';
export { type ModelName, parseModelName, quantOf } from './name.ts';
export { type PulledFile, type PullOptions, type PullProgress, type PullResult, pull } from './pull.ts';
export { planRemoval, type Removal } from './remove.ts';
export { type ResolvedModel, type ResolveOptions, resolveModel } from './resolve.ts';
