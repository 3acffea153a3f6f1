/** `kvasir pull`: downloads a model and its profile from the Hugging Face hub into its shared cache. */
import type { Command } from 'commander';
import { pull } from '../hub.ts';
import { formatFileSize } from '../util/units.ts';
import { runInterruptible } from './model-command.ts';
import { createProgress } from './progress.ts';
import { printResult } from './table.ts';

interface Options {
  revision?: string;
  profile?: string;
  force?: boolean;
  json?: boolean;
  quiet?: boolean;
}

export function addPull(program: Command): void {
  program
    .command('pull')
    .description('download a GGUF model from the Hugging Face hub, with its profile if there is one')
    .argument('<model>', 'org/repo, org/repo:Q4_K_M or org/repo/file.gguf')
    .option('--revision <name>', 'a branch, tag or commit (default: main)')
    .option(
      '--profile <repo>',
      "repository of the model's profile, org/repo or org/repo:file.kvprofile (default: the model's own)",
    )
    .option('--force', 'download a model that this version does not run, too')
    .option('--json', 'print the result as JSON')
    .option('--quiet', 'print only the result, no progress')
    .action((model: string, options: Options) => runInterruptible(signal => runPull(model, options, signal)));
}

async function runPull(
  model: string,
  { revision, profile, force, json, quiet }: Options,
  signal: AbortSignal,
): Promise<void> {
  const progress = createProgress({ title: model, unit: 'B', quiet });
  const onStop = () => {
    const flags = [
      ...(revision ? ['--revision', revision] : []),
      ...(profile ? ['--profile', profile] : []),
      ...(force ? ['--force'] : []),
    ];
    progress.end();
    console.error(`stopped; the partial download is kept. To resume: ${['kvasir pull', model, ...flags].join(' ')}`);
  };
  signal.addEventListener('abort', onStop, { once: true });
  const result = await pull(model, {
    revision,
    profile,
    force,
    signal,
    onProgress: ({ done, total }) => progress.update(done, total),
    onMessage: progress.note,
  }).finally(progress.end);
  const bytes = result.files.reduce((sum, file) => sum + file.bytes, 0);
  const status = result.files.some(file => file.fetched) ? 'downloaded and verified' : 'already downloaded';
  progress.end(`${result.repo}${result.quant ? `:${result.quant}` : ''}: ${formatFileSize(bytes)}, ${status}`);
  if (result.profile) progress.end(`profile ${result.profile.file}: ${formatFileSize(result.profile.bytes)}, checked`);
  if (result.profileProblem) {
    console.error(`No profile was stored: ${result.profileProblem}`);
    // The model is there; only a profile that was asked for is a failure.
    if (profile !== undefined) process.exitCode = 1;
  }
  printResult(json, result, ({ path }) => path);
}
