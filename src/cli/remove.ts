/** `kvasir rm`: deletes a model from the hub cache. */
import { createInterface } from 'node:readline/promises';
import type { Command } from 'commander';
import { planRemoval } from '../hub.ts';
import { InputError } from '../util/errors.ts';
import { formatFileSize } from '../util/units.ts';
import { printResult } from './table.ts';

interface Options {
  yes?: boolean;
  json?: boolean;
}

export function addRemove(program: Command): void {
  program
    .command('rm')
    .description('remove a model from this machine')
    .argument('<model>', 'the name that `kvasir list` prints')
    .option('--yes', 'do not ask for confirmation')
    .option('--json', 'print what was removed as JSON')
    .action(remove);
}

async function remove(name: string, { yes, json }: Options): Promise<void> {
  const { files, blobs, bytes, run } = await planRemoval(name);
  if (!yes && !(await confirm(`Remove ${name} (${formatFileSize(bytes)})? [y/N] `))) return;
  await run();
  printResult(json, { name, bytes, files, blobs }, () => `Removed ${name}: ${formatFileSize(bytes)} freed.`);
}

async function confirm(question: string): Promise<boolean> {
  if (!process.stdin.isTTY || !process.stderr.isTTY)
    throw new InputError('Removal needs a confirmation, and this is not a terminal. Add --yes to skip it.');
  const terminal = createInterface({ input: process.stdin, output: process.stderr });
  const answer = await Promise.race([
    terminal.question(question),
    new Promise<string>(resolve => {
      terminal.once('close', () => resolve(''));
      terminal.once('SIGINT', () => {
        process.exitCode = 130;
        terminal.close();
      });
    }),
  ]);
  terminal.close();
  return /^y(es)?$/i.test(answer.trim());
}
