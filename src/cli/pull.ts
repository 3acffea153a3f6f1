/** `kvasir pull`: a model from the Hugging Face hub into the cache that other tools share. */
import type { Command } from 'commander';
import { pull } from '../model/hub/pull.ts';
import { formatFileSize } from '../units.ts';
import { createProgress } from './progress.ts';

interface Options {
  revision?: string;
  json?: boolean;
  quiet?: boolean;
}

export function addPull(program: Command): void {
  program
    .command('pull')
    .description('fetch a GGUF model from the Hugging Face hub')
    .argument('<model>', 'org/repo, org/repo:Q4_K_M or org/repo/file.gguf')
    .option('--revision <name>', 'a branch, tag or commit (default: main)')
    .option('--json', 'print the result as JSON')
    .option('--quiet', 'no progress, only the result')
    .action(runPull);
}

async function runPull(model: string, { revision, json, quiet }: Options): Promise<void> {
  const stop = new AbortController();
  const onSignal = () => stop.abort();
  // Once: a second Ctrl-C ends the process at once, and the partial file is sound even then.
  process.once('SIGINT', onSignal).once('SIGTERM', onSignal);
  const progress = createProgress({ title: model, unit: 'B', quiet });
  try {
    const result = await pull(model, {
      revision,
      signal: stop.signal,
      onProgress: ({ done, total }) => progress.update(done, total),
      onNote: progress.note,
    });
    const bytes = result.files.reduce((sum, file) => sum + file.bytes, 0);
    const how = result.files.some(file => file.fetched) ? 'checked and ready' : 'was here already';
    progress.end(`${result.repo}${result.quant ? `:${result.quant}` : ''}: ${formatFileSize(bytes)}, ${how}`);
    console.log(json ? JSON.stringify(result, null, 2) : result.path);
  } catch (error) {
    progress.end();
    if (!stop.signal.aborted) throw error;
    const again = ['kvasir pull', model, ...(revision ? ['--revision', revision] : [])].join(' ');
    console.error(`stopped; what has arrived is kept. To go on from there: ${again}`);
    process.exitCode = 130;
  } finally {
    process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
  }
}
