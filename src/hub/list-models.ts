/** Lists the models in the hub cache. */
import { stat } from 'node:fs/promises';
import {
  cacheDir,
  type Env,
  listCachedRepos,
  listSnapshotFiles,
  listSnapshots,
  repoDir,
  snapshotPath,
} from './cache.ts';
import { formatModelName, groupModels } from './name.ts';

export interface CachedModel {
  /** The name to pass to `loadModel`, such as `org/repo:Q4_K_M`. */
  name: string;
  /** The first part's path in the repository. */
  file: string;
  /** The paths of all parts on disk, in order. */
  paths: string[];
  /** Quantization, if the file name contains it. */
  quant?: string;
  /** Size of all parts. */
  bytes: number;
  /** Last access time, if the file system records it. */
  lastUsed: Date;
}

export interface ListOptions {
  /** Where HF_HUB_CACHE and HF_HOME are looked up. Default: `process.env`. */
  env?: Env;
}

/** Lists the complete models in the hub cache. */
export async function listModels({ env = process.env }: ListOptions = {}): Promise<CachedModel[]> {
  const cache = cacheDir(env);
  const modelsByName = new Map<string, CachedModel>();
  for (const repo of await listCachedRepos(cache)) {
    const dir = repoDir(cache, repo);
    for (const commit of await listSnapshots(dir, 'main')) {
      const models = groupModels(await listSnapshotFiles(dir, commit, '.gguf'));
      for (const model of models.filter(({ parts, partCount }) => parts.length === partCount)) {
        const name = formatModelName(repo, model, models);
        if (modelsByName.has(name)) continue;
        const paths = model.parts.map(part => snapshotPath(dir, commit, part));
        const files = await Promise.all(paths.map(path => stat(path)));
        modelsByName.set(name, {
          name,
          file: model.file,
          paths,
          quant: model.quant,
          bytes: files.reduce((sum, { size }) => sum + size, 0),
          lastUsed: new Date(Math.max(...files.map(({ atimeMs, mtimeMs }) => Math.max(atimeMs, mtimeMs)))),
        });
      }
    }
  }
  return [...modelsByName.values()];
}
