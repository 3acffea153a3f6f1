/** `kvasir list`: the models in the hub cache. */
import type { Command } from 'commander';
import { type CachedModel, cacheDir, listModels } from '../hub.ts';
import { knownFingerprint } from '../model/fingerprint.ts';
import { kvasirCacheDir, listProfilePaths } from '../plan/profile-store.ts';
import { formatFileSize } from '../units.ts';
import { formatTable } from './table.ts';

export function addList(program: Command): void {
  program
    .command('list')
    .description('list the models in the Hugging Face cache of this machine')
    .option('--json', 'print as JSON')
    .action(async ({ json }: { json?: boolean }) => {
      const models = await Promise.all((await listModels()).map(addProfile));
      if (json) console.log(JSON.stringify(models, null, 1));
      else if (models.length === 0)
        console.log(`No models in ${cacheDir(process.env)}. Fetch one: kvasir pull org/repo:Q4_K_M`);
      else
        console.log(
          formatTable(
            ['name', 'file', 'size', 'profile', 'last used'],
            models.map(({ name, file, bytes, profile, lastUsed }) => [
              name,
              file,
              formatFileSize(bytes),
              profile ? 'yes' : '-',
              formatDay(lastUsed),
            ]),
          ),
        );
    });
}

/** Adds the path of the model's profile, if it has one. */
async function addProfile(model: CachedModel) {
  const fingerprint = await knownFingerprint(model.paths, { cacheDir: await kvasirCacheDir() });
  const [profile] = await listProfilePaths(model.paths[0], fingerprint);
  return { ...model, profile };
}

/** The date in the user's time zone: 2025-11-02. */
const formatDay = (date: Date): string => date.toLocaleDateString('sv-SE');
