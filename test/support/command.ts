/** Runs the built command, dist/cli/main.js. */
import { spawn } from 'node:child_process';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

export interface RunOptions {
  input?: string;
  /** Instead of `input`: /dev/null, or a pipe that stays open. */
  stdin?: 'none' | 'open';
  /** HF_HUB_CACHE; a folder that there is not by default. */
  hubCache?: string;
  /** KVASIR_CACHE; by default one that all tests of a run share. */
  kvasirCache?: string;
  /** The folder it runs in. Default: this one. */
  cwd?: string;
  /** Sends Ctrl-C once, when this returns true for the output so far. */
  interruptWhen?: (printed: { stdout: string; stderr: string }) => boolean;
}

export function kvasir(
  args: string[],
  {
    input = '',
    stdin,
    hubCache = join(tmpdir(), 'no-hub'),
    kvasirCache = join(tmpdir(), 'no-cache'),
    cwd,
    interruptWhen,
  }: RunOptions = {},
) {
  const env = { ...process.env, HF_HUB_CACHE: hubCache, KVASIR_CACHE: kvasirCache };
  const child = spawn(process.execPath, [main, ...args], {
    env,
    cwd,
    stdio: [stdin === 'none' ? 'ignore' : 'pipe', 'pipe', 'pipe'],
  });
  const printed = { stdout: '', stderr: '' };
  let interrupted = false;
  for (const name of ['stdout', 'stderr'] as const)
    child[name]?.setEncoding('utf8').on('data', (data: string) => {
      printed[name] += data;
      if (interrupted || !interruptWhen?.(printed)) return;
      interrupted = true;
      child.kill('SIGINT');
    });
  if (stdin !== 'open') child.stdin?.end(input);
  return new Promise<{ status: number | null; stdout: string; stderr: string }>(resolve => {
    child.on('close', status => resolve({ status, ...printed }));
  });
}

/** The standard output of a synchronous command, also if it fails. */
export function outputOf(run: () => string): string {
  try {
    return run();
  } catch (error) {
    return (error as { stdout: string }).stdout;
  }
}
