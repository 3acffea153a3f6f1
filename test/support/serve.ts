/** `kvasir serve` as a process, on a free port. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { freePort } from '../../bench/serve/servers.ts';

export { freePort };

const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

/** The small model in the package. */

export interface ServerProcess {
  pid: number;
  url: string;
  port: number;
  /** Ends it at once, as a crash of its machine would. */
  kill(): Promise<void>;
}

/** Starts it, and resolves when it answers requests: it listens while its engine loads. */
export async function startServer(model: string, ...options: string[]): Promise<ServerProcess> {
  const args = [main, 'serve', model, '--port', '0', '--device', 'wasm', '--threads', '1', ...options];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let printed = '';
  const url = await new Promise<string>((resolve, reject) => {
    for (const output of [child.stdout, child.stderr])
      output.setEncoding('utf8').on('data', (text: string) => {
        printed += text;
        const [, address] = printed.match(/Listening on (http:\S+)/) ?? [];
        if (address) resolve(address);
      });
    child.once('exit', status => reject(new Error(`kvasir serve ended with ${status}: ${printed}`)));
  });
  while (!(await fetch(`${url}/health`)).ok) await delay(50);
  return { pid: child.pid!, url, port: Number(new URL(url).port), kill: () => kill(child) };
}

/** Starts another program that listens on this port. */
export async function startListener(port: number, command: string, ...args: string[]): Promise<() => Promise<void>> {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let printed = '';
  for (const output of [child.stdout, child.stderr])
    output.setEncoding('utf8').on('data', (text: string) => {
      printed = (printed + text).slice(-4000);
    });
  for (const url = `http://127.0.0.1:${port}`; ; await delay(50)) {
    if (child.exitCode !== null) throw new Error(`${command} ended with ${child.exitCode}: ${printed}`);
    if (
      await fetch(url).then(
        () => true,
        () => false,
      )
    )
      return () => kill(child);
  }
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill('SIGKILL');
  await exit;
}
