/** `kvasir list`: the models in the current folder and in the hub cache. */
import { readdir, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import type { Command } from 'commander';
import { groupModels } from '../hub/name.ts';
import { type CachedModel, cacheDir, listModels } from '../hub.ts';
import { knownFingerprint } from '../model/fingerprint.ts';
import { kvasirCacheDir, listProfilePaths } from '../plan/profile-store.ts';
import { formatFileSize } from '../util/units.ts';
import { formatTable, printResult } from './table.ts';

export function addList(program: Command): void {
  program
    .command('list')
    .description('list the models in this folder and in the Hugging Face cache of this machine')
    .option('--json', 'print as JSON')
    .action(async ({ json }: { json?: boolean }) => {
      const found = [...(await listFolder()), ...(await listModels())];
      printResult(json, await Promise.all(found.map(addProfile)), render);
    });
}

function render(models: readonly Awaited<ReturnType<typeof addProfile>>[]): string {
  if (models.length === 0)
    return `No models in this folder or ${cacheDir(process.env)}. Fetch one: kvasir pull org/repo:Q4_K_M`;
  return formatTable(
    ['name', 'file', 'size', 'profile', 'last used'],
    models.map(({ name, file, bytes, profile, lastUsed }) => [
      ...[name, file, formatFileSize(bytes), profile ? 'yes' : '-', formatDay(lastUsed)],
    ]),
  );
}

/** The complete models in the current folder, whose names are their files. */
async function listFolder(): Promise<CachedModel[]> {
  const models = groupModels(await readdir('.').catch(() => []));
  return Promise.all(
    models
      .filter(({ parts, partCount }) => parts.length === partCount)
      .map(async ({ file, parts, quant }) => {
        const files = await Promise.all(parts.map(part => stat(part)));
        return {
          ...{ name: file, file, quant },
          paths: parts.map(part => resolve(part)),
          bytes: files.reduce((sum, { size }) => sum + size, 0),
          lastUsed: new Date(Math.max(...files.map(({ atimeMs, mtimeMs }) => Math.max(atimeMs, mtimeMs)))),
        };
      }),
  );
}

/** Adds the path of the model's profile, if it has one. */
async function addProfile(model: CachedModel) {
  const fingerprint = await knownFingerprint(model.paths, { cacheDir: await kvasirCacheDir() });
  const [profile] = await listProfilePaths(model.paths[0], fingerprint);
  return { ...model, profile };
}

/** The date in the user's time zone: 2025-11-02. */
const formatDay = (date: Date): string => date.toLocaleDateString('sv-SE');
