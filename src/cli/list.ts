/** `kvasir list`: the models in the hub cache. */
import type { Command } from 'commander';
import { cacheDir, listModels } from '../hub.ts';
import { formatFileSize } from '../units.ts';
import { formatTable } from './table.ts';

export function addList(program: Command): void {
  program
    .command('list')
    .description('list the models in the Hugging Face cache of this machine')
    .option('--json', 'print as JSON')
    .action(async ({ json }: { json?: boolean }) => {
      const models = await listModels();
      if (json) console.log(JSON.stringify(models, null, 1));
      else if (models.length === 0)
        console.log(`No models in ${cacheDir(process.env)}. Fetch one: kvasir pull org/repo:Q4_K_M`);
      else
        console.log(
          formatTable(
            ['name', 'file', 'size', 'last used'],
            models.map(({ name, file, bytes, lastUsed }) => [name, file, formatFileSize(bytes), formatDay(lastUsed)]),
          ),
        );
    });
}

/** The date in the user's time zone: 2025-11-02. */
const formatDay = (date: Date): string => date.toLocaleDateString('sv-SE');
