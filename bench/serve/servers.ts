/** Servers that the benchmark starts itself: kvasir serve, and llama.cpp's llama-server with the same bytes of KV cache. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { openModelFile } from '../../src/engine/engine.ts';
import { memoryReport } from '../../src/plan/memory.ts';
import { InputError } from '../../src/util/errors.ts';
import { formatBytes } from '../../src/util/units.ts';

export interface RunningServer {
  url: string;
  /** What is compared. */
  setting: string;
  close(): Promise<void>;
}

export interface ServerSetup {
  model: string;
  /** Bytes of the whole KV cache. */
  kvMemory: number;
  /** Max tokens of a sequence. */
  context: number;
  threads: number;
}

/** `npm run bench` builds it, and runs in the repository's root. */
const main = 'dist/cli/main.js';

export async function startKvasir(setup: ServerSetup, kv: string): Promise<RunningServer> {
  const port = await freePort();
  const args = [main, 'serve', setup.model, '--kv', kv, '--kv-memory', String(setup.kvMemory)];
  args.push('--context', String(setup.context), '--threads', String(setup.threads), '--port', String(port));
  const setting = `kvasir, ${kv}, ${formatBytes(setup.kvMemory)}`;
  return start(process.execPath, args, { port, path: '/ready', setting });
}

/**
 * `type` is ggml's type of keys and values. All slots share one buffer, and there is no second cache in main memory
 * (`--cache-ram 0`): it would be memory for KV that is not counted.
 */
export async function startLlama(
  command: string,
  setup: ServerSetup,
  { type, slots }: { type: string; slots: number },
): Promise<RunningServer> {
  const { gguf, config } = await openModelFile(setup.model);
  await gguf.close();
  // llama.cpp rounds its context up to 256 tokens.
  const tokens = Math.floor(setup.kvMemory / memoryReport(type, config, setup.context).bytesPerToken / 256) * 256;
  if (tokens < setup.context)
    throw new InputError(
      `${formatBytes(setup.kvMemory)} hold ${tokens} tokens in ${type}, fewer than one sequence of ${setup.context}. ` +
        'Give more --kv-memory or a shorter --context.',
    );
  const port = await freePort();
  const args = ['-m', setup.model, '-c', String(tokens), '-np', String(slots), '-t', String(setup.threads)];
  args.push('-ctk', type, '-ctv', type, '-fa', 'on', '--kv-unified', '--cache-ram', '0', '--fit', 'off', '--jinja');
  args.push('--host', '127.0.0.1', '--port', String(port));
  const setting = `llama-server, ${type}, ${tokens} tokens, ${slots} slots`;
  return start(command, args, { port, path: '/health', setting });
}

interface Started {
  port: number;
  /** Answers 200 when the model is loaded. */
  path: string;
  setting: string;
}

const LOAD_MS = 300_000;

async function start(command: string, args: string[], { port, path, setting }: Started): Promise<RunningServer> {
  const child = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] });
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', text => {
    errors = (errors + text).slice(-2000);
  });
  const failed = new Promise<string>(resolve => {
    child.once('error', error => resolve(error.message));
    child.once('exit', code => resolve(`exit status ${code}`));
  });
  let reason: string | undefined;
  failed.then(text => {
    reason = text;
  });
  const url = `http://127.0.0.1:${port}`;
  for (const begin = Date.now(); ; await delay(200)) {
    if (reason ?? Date.now() - begin > LOAD_MS) {
      child.kill();
      throw new InputError(`${command} did not start (${reason ?? 'too slow'}): ${errors.slice(-500)}`);
    }
    if (
      await fetch(url + path).then(
        ({ ok }) => ok,
        () => false,
      )
    )
      break;
  }
  return { url, setting, close: () => stop(child) };
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill('SIGTERM');
  const forced = setTimeout(() => child.kill('SIGKILL'), 10_000);
  await exit;
  clearTimeout(forced);
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  return typeof address === 'object' && address ? address.port : 0;
}
