/** `kvasir serve`: a model for clients of OpenAI's, Anthropic's and Ollama's APIs. */
import { constants } from 'node:fs';
import { access, mkdir } from 'node:fs/promises';
import { basename } from 'node:path';
import { Command } from 'commander';
import { startBackend } from '../server/backend.ts';
import { defaultLimits } from '../server/limits.ts';
import type { HttpServer } from '../server/serve.ts';
import type { TenantConfig } from '../server/tenants.ts';
import { readWebFiles } from '../server/web-files.ts';
import { isLoopback } from '../server/web-pages.ts';
import { InputError } from '../util/errors.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../util/units.ts';
import { MAX_PASS_MS } from '../worker/engine-process.ts';
import { limitHeapGrowth } from '../worker/heap-growth.ts';
import type { ServiceInfo } from '../worker/service.ts';
import {
  addModelArgument,
  addModelOptions,
  createLoadingBars,
  loadOptions,
  type ModelOptions,
  parseChoice,
  parseList,
  parseNumber,
} from './model-command.ts';
import { readTextFile } from './read-text.ts';
import { formatCache, formatDevice } from './stats.ts';
import { formatPlural } from './table.ts';

interface Options extends ModelOptions {
  host: string;
  port: number;
  servedName?: string[];
  strictModel?: boolean;
  operatorPort?: Address;
  allowedHosts?: string[];
  apiKey?: string[];
  apiKeys?: string;
  maxSequences?: number;
  prefillShare?: number;
  maxQueue: number;
  maxOutput: number;
  maxBody?: number;
  batchInvariant: boolean;
  requestTimeout: number;
  engineTimeout: number;
  heartbeat: number;
  cors?: string[];
  slotSavePath?: string;
  logLevel: string;
  logRequests?: boolean;
  logPrompts?: boolean;
}

const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'];

const HELP = `
Every option can be set by the environment variable that is shown with it. Options win. Flags: 1 is on, 0 is off.

Examples:
  kvasir serve model.gguf
  kvasir serve model.gguf --quality small --context 32k --kv-memory 2GiB --served-name local,gpt-4o
  kvasir serve model.gguf --host 0.0.0.0 --api-key "$KEY"
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Who was Kvasir?"}], "stream": true}'`;

export function addServe(program: Command): void {
  const command = program
    .command('serve')
    .description('serve a model over HTTP, for clients of OpenAI, Anthropic and Ollama')
    .addHelpText('after', HELP)
    .action(run);
  addModelArgument(command);
  // A variable is only read if it is set before the option is added.
  for (const option of serveOptions().options) {
    const variable = `KVASIR_${option.name().replaceAll('-', '_').toUpperCase()}`;
    const value = process.env[variable];
    // Of a flag, any value would turn it on.
    if (value === '' || (!option.required && /^(0|false|no|off)$/i.test(value ?? ''))) delete process.env[variable];
    command.addOption(option.env(variable));
  }
}

const serveOptions = (): Command =>
  addModelOptions(new Command().optionsGroup('Model:'))
    .option('--max-sequences <n>', 'answers that run at the same time (default: 32, on webgpu 64)', parseCount)
    .option(
      '--prefill-share <x>',
      'part of the time for new prompts while answers are written, 0 to 1 (default: at most .75)',
      parseNumber,
    )
    .option('--no-batch-invariant', 'faster with many answers on a GPU; their last bits then depend on what else runs')
    .option('--engine-timeout <s>', 'seconds per pass; then the engine is restarted', parseSeconds, MAX_PASS_MS / 1000)
    .optionsGroup('Clients:')
    .option('--host <address>', 'address to listen on; 0.0.0.0 for all', '127.0.0.1')
    .option('--port <n>', 'port to listen on; 0 for any that is free', parsePort, 8080)
    .option('--served-name <names>', 'names of the model, separated by commas (default: the file name)', appendList)
    .option('--strict-model', 'refuse other names of the model; without, they get the same model')
    .option('--api-key <keys>', 'require one of these keys; separated by commas, or repeated', appendList)
    .option('--api-keys <file>', 'JSON file with tenants, their keys and quotas')
    .option('--operator-port <n>', 'port, or address:port, for probes and metrics without a key', parseAddress)
    .option('--allowed-hosts <names>', 'host names of this server, if it has no keys; separated by commas', appendList)
    .option('--cors <origins>', 'origins of web pages that may ask, separated by commas, or *', appendList)
    .optionsGroup('Limits:')
    .option('--max-queue <n>', 'answers that wait; further requests get a 429', parseCount, defaultLimits.queue)
    .option('--max-output <n>', 'tokens per answer: default and limit', parseCount, defaultLimits.output)
    .option('--max-body <size>', `size of a request (default: ${formatBytes(defaultLimits.body)})`, parseBytes)
    .option('--request-timeout <s>', 'seconds that a request may take', parseSeconds, defaultLimits.time / 1000)
    .option('--heartbeat <s>', 'seconds of silence in a stream before a heartbeat', parseSeconds, 15)
    .optionsGroup('Files and log:')
    .option('--slot-save-path <dir>', 'folder for saved slots (default: they cannot be saved)')
    .option('--log-level <level>', 'trace, debug, info, warn, error, fatal or silent', parseChoice(LOG_LEVELS), 'info')
    .option('--log-requests', 'log a line per request')
    .option('--log-prompts', 'log the bodies of requests: what users typed');

const appendList = (text: string, previous: string[] = []): string[] => [...previous, ...parseList(text)];

/** 23 days. Timers count milliseconds in 31 bits, and end at once if they are longer. */
const MAX_SECONDS = 2_000_000;

function parseSeconds(text: string): number {
  const seconds = parseNumber(text);
  if (seconds > 0 && seconds <= MAX_SECONDS) return seconds;
  throw new InputError(`"${text}" is not a time. Write seconds, more than 0 and at most ${MAX_SECONDS}.`);
}

function parsePort(text: string): number {
  const port = Number(text);
  if (!/^\d+$/.test(text) || port > 65535) throw new InputError(`"${text}" is not a port. Ports are 0 to 65535.`);
  return port;
}

interface Address {
  host?: string;
  port: number;
}

/** `9090`, `127.0.0.1:9090`, `[::1]:9090`. */
function parseAddress(text: string): Address {
  const [, host, port] = text.match(/^(?:\[?(.+?)\]?:)?([^:\]]*)$/) ?? [];
  return { ...(host !== undefined && { host }), port: parsePort(port ?? text) };
}

async function run(model: string, options: Options): Promise<void> {
  limitHeapGrowth();
  // Loaded here, so that other commands start without the libraries of the server.
  const [{ createApp }, { listen }] = await Promise.all([import('../server/app.ts'), import('../server/serve.ts')]);
  const tenants = await readTenants(options);
  if (options.slotSavePath !== undefined) await createFolder(options.slotSavePath, '--slot-save-path');
  const logger = await createLogger(options.logLevel);
  const { host, port, cors, logRequests, logPrompts, maxSequences, prefillShare, batchInvariant } = options;
  // A bar on a terminal, elsewhere lines of the log.
  const stream = process.stderr.isTTY ? process.stderr : { write: (line: string) => logger.info(line.trim()) };
  const progress = createLoadingBars({ stream });
  const backend = startBackend({
    model,
    loadOptions: { ...(await loadOptions(model, options)), maxSequences, prefillShare, batchInvariant },
    maxPassMs: options.engineTimeout * 1000,
    onEvent: event => {
      if (event.type === 'progress') return progress.update(event.progress);
      if (event.type === 'output') return logger.info({ engine: event.stream }, event.line);
      progress.end();
      // The first start reports on the terminal.
      if (!backend.info) return;
      if (event.error) logger.error({ err: event.error }, `engine ${event.state}`);
      else if (event.state === 'ready' && backend.restarts > 0)
        logger.info({ restarts: backend.restarts }, 'engine ready again');
    },
  });
  const names = [...new Set([...(options.servedName ?? []), model.endsWith('.gguf') ? basename(model) : model])];
  const limits = {
    ...{ queue: options.maxQueue, output: options.maxOutput, body: options.maxBody ?? defaultLimits.body },
    time: options.requestTimeout * 1000,
  };
  const web = readWebFiles();
  const { strictModel, allowedHosts = [], operatorPort } = options;
  const app = createApp({
    ...{ backend, names, strictModel, tenants, limits, cors, logger, logRequests, logPrompts, web },
    hosts: [host, ...(operatorPort?.host ? [operatorPort.host] : []), ...allowedHosts],
    slotPath: options.slotSavePath,
    heartbeatMs: options.heartbeat * 1000,
  });
  let operators: HttpServer | undefined;
  try {
    // Both listen before the model is loaded, so that probes are answered.
    if (operatorPort)
      operators = await listen({ fetch: app.fetchForOperators }, { host, ...operatorPort, requestMs: limits.time });
    const server = await listen(app, { host, port, requestMs: limits.time });
    const stopped = untilStopped(server);
    if (tenants.length === 0 && !isLoopback(host))
      console.error(`Warning: anybody who can reach ${host} can use this server. Set --api-key.`);
    if (tenants.length === 0 && cors?.includes('*'))
      console.error('Warning: any web page that a user of this machine opens can use this server. Set --api-key.');
    const started = backend.ready().then(({ info }) => {
      progress.end();
      for (const notice of info.notices) console.error(notice);
      console.log(
        describeServer(info, names, { url: server.url, hasApp: web !== undefined, operatorUrl: operators?.url }),
      );
    });
    try {
      await Promise.race([started, stopped]);
      await stopped;
    } catch (error) {
      await server.stop();
      throw error;
    }
  } finally {
    progress.end();
    // Until now, so that probes and Prometheus see that it drains.
    await operators?.stop();
    await backend.close();
  }
}

async function readTenants({ apiKey, apiKeys }: Options): Promise<TenantConfig[]> {
  const { DEFAULT_TENANT, parseTenants } = await import('../server/tenants.ts');
  // As in `--api-key "$KEY"` without a KEY: not a server that asks for no key.
  if (apiKey?.length === 0) throw new InputError('--api-key is empty. Give a key of 8 characters or more.');
  const configured = apiKeys === undefined ? [] : parseTenants(await readTextFile(apiKeys, '--api-keys'), apiKeys);
  return apiKey ? [...configured, { ...DEFAULT_TENANT, keys: apiKey }] : configured;
}

async function createFolder(path: string, flag: string): Promise<void> {
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    await access(path, constants.W_OK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new InputError(`${path} is not a folder that can be written (${code}). Check ${flag}.`, { cause: error });
  }
}

async function createLogger(level: string) {
  const { pino } = await import('pino');
  return pino({ level, base: undefined }, pino.destination({ dest: 2, sync: true }));
}

/** What one gets, one fact per line. */
function describeServer(
  info: ServiceInfo,
  names: readonly string[],
  { url, hasApp, operatorUrl = url }: { url: string; hasApp: boolean; operatorUrl?: string },
): string {
  const { device, preset, kv: spec, kvBits: bits, expectedDivergence: predicted } = info;
  const threads = device.name === 'wasm' ? ` with ${formatPlural(device.threads, 'thread')}` : '';
  return [
    `${info.modelName ?? info.architecture} as ${names.join(', ')}`,
    `${device.name}${threads}: ${formatDevice(device.why)}`,
    `cache: ${formatCache({ preset, spec, bits, predicted })}`,
    `${formatBytes(info.kvMemory)} of KV cache: ${formatCount(info.tokensThatFit)} tokens, ` +
      `${formatCount(info.sequencesAtFullContext)} sequences of ${formatCount(info.context)} tokens; ` +
      `${formatCount(info.maxSequences)} answers at the same time`,
    `Listening on ${url} (${hasApp ? 'open it in a browser; ' : ''}OpenAI: ${url}/v1, Anthropic: ${url}, Prometheus: ${operatorUrl}/metrics)`,
  ].join('\n');
}

/** The first signal drains, a second one stops at once. */
async function untilStopped(server: HttpServer): Promise<void> {
  await new Promise<void>(resolve => {
    let isDraining = false;
    const onSignal = () => {
      if (isDraining) {
        process.off('SIGINT', onSignal).off('SIGTERM', onSignal);
        console.error('Stopping.');
        void server.stop().then(resolve);
        return;
      }
      isDraining = true;
      console.error('Finishing what runs; once more to stop at once.');
      void server.drain().then(resolve);
    };
    process.on('SIGINT', onSignal).on('SIGTERM', onSignal);
  });
}
