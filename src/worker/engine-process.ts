/**
 * The engine in a process of its own (Node): a crash or a hang of it, such as in a GPU driver, fails the requests that run
 * and nothing else. It is restarted.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { LoadProgress } from '../model/weights.ts';
import { settleWithin } from '../platform/event-loop.ts';
import { DeviceError, KvasirError, type Wording } from '../util/errors.ts';
import { connectService, type RemoteService } from './connect.ts';
import type { EngineSource } from './engine-main.ts';
import { portToChild } from './process-port.ts';
import type { ModelService } from './service.ts';

/** `failed`: it could not be started, and will not be started again. */
export type EngineState = 'loading' | 'ready' | 'restarting' | 'failed' | 'closed';

export type EngineEvent =
  /** `error`: why the engine ended or could not be started. */
  | { type: 'state'; state: EngineState; error?: Error }
  | { type: 'progress'; progress: LoadProgress }
  /** A line that the engine has printed. */
  | { type: 'output'; stream: 'stdout' | 'stderr'; line: string };

export interface EngineProcessOptions extends Partial<Pick<EngineSource, 'loadOptions'>> {
  /** A path, a hub name or a URL. */
  model: string;
  /**
   * Milliseconds that the device may take for a pass, of which a long prompt needs many. If it takes longer, it hangs, and
   * the engine is restarted. Default: two minutes.
   */
  maxPassMs?: number;
  onEvent?: (event: EngineEvent) => void;
}

export interface EngineProcess {
  readonly state: EngineState;
  /** The process id, while there is a process. */
  readonly pid?: number;
  /** How often it was started again. */
  readonly restarts: number;
  /** The service, while the engine is ready. */
  readonly service?: ModelService;
  /** Waits until the engine is ready; rejects if it fails or is closed. */
  ready(): Promise<ModelService>;
  /** Refuses new requests, and waits until those that run have ended. The engine is not restarted any more. */
  drain(): Promise<void>;
  /** Drains and closes the service within `timeLimit` milliseconds, then ends the process. Default: 10 seconds. */
  close(timeLimit?: number): Promise<void>;
}

const MAX_FAILED_STARTS = 5;
const FIRST_DELAY_MS = 250;
const CLOSE_TIME_LIMIT_MS = 10_000;
export const MAX_PASS_MS = 120_000;

/** Node cannot run the sources: under a test runner that can, the build is started. */
const program = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../../dist/worker/engine-main.js' : './engine-main.js', import.meta.url),
);

/** Starts the engine. It does not keep this process alive, except while it is loading or has requests. */
export function startEngineProcess(options: EngineProcessOptions): EngineProcess {
  const { model, loadOptions = {}, maxPassMs = MAX_PASS_MS, onEvent } = options;
  let state: EngineState = 'loading';
  let failure: Error | undefined;
  let child: ChildProcess | undefined;
  let service: RemoteService | undefined;
  let starts = 0;
  let failedStarts = 0;
  let wasReady = false;
  let isStopping = false;
  let restart: NodeJS.Timeout | undefined;
  let waiting: (() => void)[] = [];

  const enter = (next: EngineState, error?: Error) => {
    state = next;
    failure = error;
    onEvent?.({ type: 'state', state, ...(error && { error }) });
    for (const notify of waiting) notify();
    waiting = [];
  };

  /** From the start of a process to its end. */
  const run = async () => {
    starts++;
    const started = startChild(onEvent);
    child = started.child;
    let error: Error;
    try {
      const source: EngineSource = { model, loadOptions };
      const onProgress = (progress: LoadProgress) => onEvent?.({ type: 'progress', progress });
      service = await connectService(portToChild(child), { source, onProgress, maxPassMs });
      failedStarts = 0;
      wasReady = true;
      enter('ready');
      error = await service.ended;
    } catch (cause) {
      failedStarts++;
      error = cause as Error;
    }
    service = undefined;
    const final = finalFailure(error);
    if (!isStopping && !final) enter('restarting', error);
    // If loading has failed, or the device is lost or hangs, the process is still there. Its end may take time.
    child.kill('SIGKILL');
    await started.exited;
    child = undefined;
    if (isStopping) enter('closed');
    else if (final) enter('failed', final);
    else
      restart = setTimeout(
        () => {
          running = run();
        },
        FIRST_DELAY_MS * 2 ** failedStarts,
      );
  };

  /** Why it is not started again. */
  const finalFailure = (error: Error): Error | undefined => {
    // What is wrong with the model or its options stays wrong.
    if (!wasReady && error instanceof KvasirError && !(error instanceof DeviceError)) return error;
    return failedStarts >= MAX_FAILED_STARTS ? new DeviceError(describeFailure(error)) : undefined;
  };

  const drain = async () => {
    isStopping = true;
    clearTimeout(restart);
    await service?.drain();
  };

  let running = run();
  return {
    get state() {
      return state;
    },
    get pid() {
      return child?.pid;
    },
    get restarts() {
      return starts - 1;
    },
    get service() {
      return service;
    },
    async ready() {
      while (!service && state !== 'failed' && state !== 'closed')
        await new Promise<void>(resolve => {
          waiting.push(resolve);
        });
      if (service) return service;
      throw failure ?? new DeviceError('The engine was closed. Start another one.');
    },
    drain,
    async close(timeLimit = CLOSE_TIME_LIMIT_MS) {
      // Closing the service stores in the tiers what is not there yet.
      await settleWithin(
        drain().then(() => service?.close()),
        timeLimit,
      );
      // It is waited for: until now it did not keep this process alive.
      child?.ref();
      child?.kill('SIGKILL');
      await running;
      if (state !== 'closed') enter('closed');
    },
  };
}

function startChild(onEvent: EngineProcessOptions['onEvent']) {
  const child = fork(program, [], { serialization: 'advanced', stdio: ['ignore', 'pipe', 'pipe', 'ipc'] });
  for (const stream of ['stdout', 'stderr'] as const)
    createInterface({ input: child[stream]! }).on('line', line => onEvent?.({ type: 'output', stream, line }));
  const exited = new Promise<void>(resolve => {
    child.once('exit', () => resolve());
    // It could not be started.
    child.once('error', () => resolve());
  });
  return { child, exited };
}

const describeFailure =
  (error: Error): Wording =>
  option =>
    `The engine could not be started: ${MAX_FAILED_STARTS} starts in a row have failed. The last one: ` +
    (error instanceof KvasirError ? error.describe(option) : error.message);
