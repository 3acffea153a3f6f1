/** The models that lie in the hub cache, by the names under which they can be run. */
import { cacheDir, cachedRepos, type Env, fileSize, repoDir, snapshotFiles, snapshotPath, snapshots } from './cache.ts';
import { askFor, groupModels } from './name.ts';

export interface CachedModel {
  name: string;
  bytes: number;
}

export async function cachedModels(env: Env = process.env): Promise<CachedModel[]> {
  const cache = cacheDir(env);
  const found = new Map<string, number>();
  for (const repo of await cachedRepos(cache)) {
    const dir = repoDir(cache, repo);
    for (const commit of await snapshots(dir, 'main')) {
      const models = groupModels(await snapshotFiles(dir, commit));
      for (const model of models.filter(({ parts, partCount }) => parts.length === partCount)) {
        const name = askFor(repo, model, models);
        if (found.has(name)) continue;
        const sizes = await Promise.all(model.parts.map(part => fileSize(snapshotPath(dir, commit, part))));
        found.set(
          name,
          sizes.reduce<number>((sum, size) => sum + (size ?? 0), 0),
        );
      }
    }
  }
  return Array.from(found, ([name, bytes]) => ({ name, bytes }));
}
