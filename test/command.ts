/** Runs the command as it is built. */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));

export interface Act {
  input?: string;
  /** Instead of the input: /dev/null, or a pipe that nobody closes. */
  stdin?: 'none' | 'open';
  /** The hub cache; an empty one unless given. */
  cache?: string;
  /** Kvasir's own cache; an empty one unless given. */
  own?: string;
  /** Sends Ctrl-C, once, when this is true of what was printed so far. */
  interruptWhen?: (printed: { stdout: string; stderr: string }) => boolean;
}

export function kvasir(
  args: string[],
  { input = '', stdin, cache = '/nowhere/hub', own = '/nowhere/kvasir', interruptWhen }: Act = {},
) {
  const env = { ...process.env, HF_HUB_CACHE: cache, KVASIR_CACHE: own };
  const child = spawn(process.execPath, [main, ...args], {
    env,
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
