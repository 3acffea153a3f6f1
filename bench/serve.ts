/**
 * How does a server do under load that does not wait for it? Requests arrive at fixed rates, as multi-turn chats over
 * shared documents or from a recorded trace, at any OpenAI-compatible server; two servers get the same load in turn.
 * With --clients instead of --rates, as many clients ask one question after the other, with a --system prompt in common.
 *
 * llama.cpp's server, from the source package of llama-cpp-python on PyPI:
 *
 *     pip download --no-deps --no-binary :all: llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
 *     cmake -S llama_cpp_python-*\/vendor/llama.cpp -B llama -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
 *       -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_USE_PREBUILT_UI=OFF
 *     cmake --build llama --target llama-server -j
 *     npm run bench -- serve --llama-server llama/bin/llama-server
 *
 * Some virtual machines show AMX but do not allow it: an illegal instruction. Build without it then: -DGGML_NATIVE=OFF
 * and the others by name (GGML_AVX2, GGML_FMA, GGML_F16C, GGML_AVX512, GGML_AVX512_VNNI, GGML_AVX512_BF16).
 */
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { formatTable } from '../src/cli/table.ts';
import { InputError } from '../src/util/errors.ts';
import { parseBytes } from '../src/util/units.ts';
import { firstModel, type Target } from './serve/client.ts';
import { type Chat, chatLoad, clientLoad, traceLoad } from './serve/load.ts';
import { type Outcome, runLoad, type Summary, summarize } from './serve/measure.ts';
import { type RunningServer, startKvasir, startLlama } from './serve/servers.ts';

interface Options {
  url?: string;
  compare?: string;
  'llama-server'?: string;
  'cache-type': string;
  slots: string;
  'api-key'?: string;
  model: string;
  kv: string;
  'kv-memory': string;
  context: string;
  threads: string;
  rates: string;
  clients?: string;
  /** Tokens of the clients' system prompt. */
  system: string;
  rounds: string;
  /** Seconds per server, load and round; what is not answered by then counts as not answered. */
  limit: string;
  trace?: string;
  /** Of a trace: its first requests, and the divisor of their lengths. */
  requests: string;
  scale: string;
  text: string;
  chats: string;
  turns: string;
  documents: string;
  /** Tokens of a document, and of an answer. */
  prompt: string;
  tokens: string;
  json: boolean;
}

interface Result extends Summary {
  server: string;
  /** Requests per second, or clients. */
  load: string;
}

/** A server notices only after its current batch that clients have left. */
const LEAVE_MS = 5000;

export async function benchServe(options: Options): Promise<void> {
  const servers = await openServers(options);
  try {
    const targets = await Promise.all(
      servers.map(async ({ url }): Promise<Target> => {
        const apiKey = options['api-key'];
        return { url, apiKey, model: await firstModel(url, apiKey) };
      }),
    );
    const results: Result[] = [];
    const { clients } = options;
    for (const amount of (clients ?? options.rates).split(',').map(Number)) {
      const load = clients ? `${amount} clients` : `${amount} requests/s`;
      const outcomes: Outcome[][] = servers.map(() => []);
      for (let round = 0; round < Number(options.rounds); round++) {
        // Other texts in every round: none finds what another has left in a cache.
        const chats = createLoad(options, amount, round + 1 + 1000 * amount);
        // The order alternates.
        const order = servers.map((_, i) => (i + round) % servers.length);
        for (const i of order) {
          const title = `bench: ${servers[i].setting}: ${load}, round ${round + 1}`;
          console.error(title);
          const outcome = await runLoad(targets[i], chats, {
            limitMs: Number(options.limit) * 1000,
            onProgress: ({ answered, running, failed, seconds }) =>
              console.error(
                `${title}: ${seconds.toFixed(0)} s, ${answered} answered, ${running} running, ${failed} failed`,
              ),
          });
          outcomes[i].push(outcome);
          if (outcome.unfinished.length > 0) await delay(LEAVE_MS);
        }
      }
      servers.forEach(({ setting }, i) => {
        results.push({ server: setting, load, ...summarize(outcomes[i]) });
      });
    }
    console.log(options.json ? JSON.stringify(results, null, 1) : render(results));
  } finally {
    await Promise.all(servers.map(server => server.close()));
  }
}

function createLoad(options: Options, amount: number, seed: number): Chat[] {
  const text = readFileSync(options.text, 'utf8');
  const [turns, answerTokens] = [options.turns, options.tokens].map(Number);
  if (options.clients)
    return clientLoad({ clients: amount, systemTokens: Number(options.system), turns, answerTokens, seed }, text);
  if (options.trace) {
    const trace = readFileSync(options.trace, 'utf8');
    return traceLoad(
      trace,
      { rate: amount, count: Number(options.requests), scale: Number(options.scale), seed },
      text,
    );
  }
  const [chats, documents, documentTokens] = [options.chats, options.documents, options.prompt].map(Number);
  return chatLoad({ rate: amount, chats, turns, documents, documentTokens, answerTokens, seed }, text);
}

async function openServers(options: Options): Promise<RunningServer[]> {
  const running = (url: string): RunningServer => ({ url, setting: url, close: async () => {} });
  const setup = {
    model: options.model,
    kvMemory: parseBytes(options['kv-memory']),
    context: Number(options.context),
    threads: Number(options.threads),
  };
  if (options.compare && options['llama-server'])
    throw new InputError('--compare and --llama-server both name the second server. Give one of them.');
  const servers = [options.url ? running(options.url) : await startKvasir(setup, options.kv)];
  try {
    const peer = { type: options['cache-type'], slots: Number(options.slots) };
    if (options.compare) servers.push(running(options.compare));
    if (options['llama-server']) servers.push(await startLlama(options['llama-server'], setup, peer));
  } catch (error) {
    await servers[0].close();
    throw error;
  }
  return servers;
}

function render(results: readonly Result[]): string {
  const ms = (value: number) => (Number.isNaN(value) ? '-' : `${value.toFixed(0)} ms`);
  const atLeast = (value: number, isBound: boolean) => `${isBound ? '>= ' : ''}${ms(value)}`;
  const header = [
    'load',
    'server',
    'answered',
    'failed',
    'unfinished',
    'not asked',
    'per minute',
    'tokens/s',
    'cached',
  ];
  const failures = results.filter(({ failed }) => failed > 0);
  return [
    formatTable(
      [...header, 'first token p50', 'p99', 'nothing cached', 'between tokens p50', 'p99'],
      results.map(({ load, server, ...result }) => [
        load,
        server,
        result.requests,
        result.failed,
        result.unfinished,
        result.unasked,
        result.requestsPerMinute.toFixed(1),
        result.outputTokensPerSecond.toFixed(1),
        `${(result.cached * 100).toFixed(0)}%`,
        atLeast(result.firstMs.p50, result.firstMs.isBound),
        atLeast(result.firstMs.p99, result.firstMs.isBound),
        ms(result.firstMs.uncached),
        ms(result.gapMs.p50),
        ms(result.gapMs.p99),
      ]),
    ),
    ...failures.map(({ server, errors }) => `${server} failed: ${JSON.stringify(errors)}`),
  ].join('\n');
}
