/** The models that lie in the hub cache, by the names under which they can be run. */
import { stat } from 'node:fs/promises';
import { cacheDir, cachedRepos, type Env, repoDir, snapshotFiles, snapshotPath, snapshots } from './cache.ts';
import { askFor, groupModels } from './name.ts';

export interface CachedModel {
  name: string;
  /** The first part, as the repository names it. */
  file: string;
  quant?: string;
  bytes: number;
  /** When its bytes were last read, as far as the file system keeps note of that. */
  lastUsed: Date;
}

export async function cachedModels(env: Env = process.env): Promise<CachedModel[]> {
  const cache = cacheDir(env);
  const found = new Map<string, CachedModel>();
  for (const repo of await cachedRepos(cache)) {
    const dir = repoDir(cache, repo);
    for (const commit of await snapshots(dir, 'main')) {
      const models = groupModels(await snapshotFiles(dir, commit));
      for (const model of models.filter(({ parts, partCount }) => parts.length === partCount)) {
        const name = askFor(repo, model, models);
        if (found.has(name)) continue;
        const files = await Promise.all(model.parts.map(part => stat(snapshotPath(dir, commit, part))));
        found.set(name, {
          name,
          file: model.file,
          quant: model.quant,
          bytes: files.reduce((sum, { size }) => sum + size, 0),
          lastUsed: new Date(Math.max(...files.map(({ atimeMs, mtimeMs }) => Math.max(atimeMs, mtimeMs)))),
        });
      }
    }
  }
  return [...found.values()];
}
