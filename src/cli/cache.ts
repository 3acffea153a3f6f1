/** `kvasir cache`: what the disk tier holds, and how to delete it. Stored leaves carry what was said. */
import type { Command } from 'commander';
import { openDiskStore } from '../store/disk-store.ts';
import { readUsage, type TenantUsage } from '../store/disk-usage.ts';
import { tenantId } from '../store/leaf-store.ts';
import { openNodeFileSystem } from '../store/node-file-system.ts';
import { InputError } from '../util/errors.ts';
import { toHex } from '../util/sha256.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import { formatTable, printResult } from './table.ts';

interface ListOptions {
  json?: boolean;
}

interface RemoveOptions extends ListOptions {
  tenant?: string;
  model?: string;
  all?: boolean;
}

export function addCache(program: Command): void {
  const cache = program.command('cache').description('list or delete what the disk tier holds');
  cache
    .command('ls')
    .description('list what is stored, by model and tenant')
    .argument('<folder>', 'the folder of the disk tier')
    .option('--json', 'print JSON')
    .action(list);
  cache
    .command('rm')
    .description('delete what is stored of a tenant, a model or all')
    .argument('<folder>', 'the folder of the disk tier')
    .option('--tenant <name>', 'only what belongs to this tenant')
    .option('--model <fingerprint>', 'only of this model: the digits that `kvasir cache ls` prints')
    .option('--all', 'everything')
    .option('--json', 'print what was deleted as JSON')
    .action(remove);
}

interface Row extends TenantUsage {
  model: string;
  /** A hash: names are not stored. */
  tenant: string;
}

async function readRows(folder: string): Promise<Row[]> {
  const fs = await openNodeFileSystem();
  const names = await fs.list(folder).catch(error => {
    throw new InputError(`${folder} cannot be read (${error.code}). Check the path.`, { cause: error });
  });
  const rows: Row[] = [];
  for (const model of names.filter(name => /^[0-9a-f]{16}$/.test(name)).sort())
    for (const [tenant, usage] of await readUsage(fs, `${folder}/${model}`)) rows.push({ model, tenant, ...usage });
  return rows;
}

async function list(folder: string, { json }: ListOptions): Promise<void> {
  const date = (ms: number) => new Date(ms).toISOString().slice(0, 16).replace('T', ' ');
  printResult(json, await readRows(folder), rows =>
    rows.length === 0
      ? `${folder} holds nothing.`
      : formatTable(
          ['model', 'tenant', 'records', 'size', 'oldest', 'newest'],
          rows.map(({ model, tenant, records, bytes, oldest, newest }) => [
            ...[model, nameOf(tenant), formatCount(records), formatBytes(bytes), date(oldest), date(newest)],
          ]),
        ),
  );
}

const nameOf = (tenant: string): string => (tenant === toHex(tenantId('')) ? '(none)' : tenant);

async function remove(folder: string, { tenant, model, all, json }: RemoveOptions): Promise<void> {
  if (!all && tenant === undefined && model === undefined)
    throw new InputError('Name what to delete: --tenant NAME, --model FINGERPRINT, or --all.');
  const id = tenant === undefined ? undefined : toHex(tenantId(tenant));
  const isMeant = (row: Row) => (model === undefined || row.model === model) && (!id || row.tenant === id);
  const rows = (await readRows(folder)).filter(isMeant);
  for (const name of new Set(rows.map(row => row.model))) {
    const store = await openDiskStore({ path: folder, model: name, capacity: Number.MAX_SAFE_INTEGER });
    const isDone = await store.deleteTenant(tenant);
    const { lastError } = store.stats;
    await store.close();
    if (!isDone) throw new InputError(`Not everything was deleted: ${lastError} Try again.`);
  }
  const [records, bytes] = [rows.reduce((n, row) => n + row.records, 0), rows.reduce((n, row) => n + row.bytes, 0)];
  printResult(json, { records, bytes }, () => `Deleted ${formatCount(records)} records (${formatBytes(bytes)}).`);
}
