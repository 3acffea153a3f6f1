/** `kvasir pull`: downloads a model and its profile from the Hugging Face hub into its shared cache. */
import type { Command } from 'commander';
import { pull } from '../hub.ts';
import { formatFileSize } from '../util/units.ts';
import { createProgress } from './progress.ts';

interface Options {
  revision?: string;
  profile?: string;
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
    .option('--json', 'print the result as JSON')
    .option('--quiet', 'print only the result, no progress')
    .action(runPull);
}

async function runPull(model: string, { revision, profile, json, quiet }: Options): Promise<void> {
  const stop = new AbortController();
  const onSignal = () => stop.abort();
  // `once`: a second Ctrl-C kills the process; the partial file stays valid.
  process.once('SIGINT', onSignal).once('SIGTERM', onSignal);
  const progress = createProgress({ title: model, unit: 'B', quiet });
  try {
    const result = await pull(model, {
      revision,
      profile,
      signal: stop.signal,
      onProgress: ({ done, total }) => progress.update(done, total),
      onMessage: progress.note,
    });
    const bytes = result.files.reduce((sum, file) => sum + file.bytes, 0);
    const status = result.files.some(file => file.fetched) ? 'downloaded and verified' : 'already downloaded';
    progress.end(`${result.repo}${result.quant ? `:${result.quant}` : ''}: ${formatFileSize(bytes)}, ${status}`);
    if (result.profile)
      progress.end(`profile ${result.profile.file}: ${formatFileSize(result.profile.bytes)}, checked`);
    if (result.profileProblem) {
      console.error(`No profile was stored: ${result.profileProblem}`);
      // The model is there; only a profile that was asked for is a failure.
      if (profile !== undefined) process.exitCode = 1;
    }
    console.log(json ? JSON.stringify(result, null, 2) : result.path);
  } catch (error) {
    progress.end();
    if (!stop.signal.aborted) throw error;
    const command = [
      'kvasir pull',
      model,
      ...(revision ? ['--revision', revision] : []),
      ...(profile ? ['--profile', profile] : []),
    ].join(' ');
    console.error(`stopped; the partial download is kept. To resume: ${command}`);
    process.exitCode = 130;
  } finally {
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}
