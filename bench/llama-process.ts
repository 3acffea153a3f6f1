/** llama.cpp with several sequences, in a process of its own (llama-batch.ts) that is idle between two requests. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { InputError } from '../src/util/errors.ts';
import type { BatchSetup, PromptContender } from './concurrent.ts';

export interface LlamaSetting {
  /** GGML type of keys and values. */
  kv: string;
  flash: boolean;
}

export type LlamaRequest =
  | { prefill: { tokens: number } }
  | { fill: { depth: number; count: number } }
  | { decode: { count: number } };

export async function spawnLlama(setup: BatchSetup, setting: LlamaSetting): Promise<PromptContender> {
  const name = `${setting.kv.toLowerCase()}, flash ${setting.flash ? 'on' : 'off'}`;
  const script = fileURLToPath(new URL('./llama-batch.js', import.meta.url));
  const child = fork(script, [JSON.stringify({ ...setup, ...setting })], {
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  let errors = '';
  child.stderr?.setEncoding('utf8').on('data', text => {
    errors += text;
  });
  const exit = once(child, 'exit');
  /** The next message; an error if the process ends instead. */
  const answer = async (): Promise<number> => {
    const failed = exit.then(() => {
      throw new InputError(`llama.cpp (${name}) failed: ${errors.slice(-400)}`);
    });
    const [value] = await Promise.race([once(child, 'message'), failed]);
    return value;
  };
  const request = (message: LlamaRequest) => {
    child.send(message);
    return answer();
  };
  await answer();
  return {
    name,
    prefill: tokens => request({ prefill: { tokens } }),
    async fill(depth, count) {
      await request({ fill: { depth, count } });
    },
    decode: count => request({ decode: { count } }),
    async close() {
      child.disconnect();
      await exit;
    },
  };
}
