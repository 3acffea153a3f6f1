/** `kvasir list`: the models in the hub cache. */
import type { Command } from 'commander';
import { cacheDir, cachedModels } from '../model/hub/index.ts';
import { formatFileSize } from '../units.ts';
import { table } from './table.ts';

export function addList(program: Command): void {
  program
    .command('list')
    .description('the models on this machine, as `kvasir pull` and other tools left them in the hub cache')
    .option('--json', 'the models as JSON')
    .action(async ({ json }: { json?: boolean }) => {
      const models = await cachedModels();
      if (json) console.log(JSON.stringify(models, null, 1));
      else if (models.length === 0)
        console.log(`No models in ${cacheDir(process.env)}. Fetch one: kvasir pull org/repo:Q4_K_M`);
      else
        console.log(
          table(
            ['name', 'file', 'size', 'last used'],
            models.map(({ name, file, bytes, lastUsed }) => [name, file, formatFileSize(bytes), dayOf(lastUsed)]),
          ),
        );
    });
}

/** The date where the user is: 2025-11-02. */
const dayOf = (date: Date): string => date.toLocaleDateString('sv-SE');
