/**
 * The one loop that generates tokens. Each turn: drop what was cancelled, admit waiting requests while there is room, give
 * every decoding request its row and prompts the rows that are left, make room for the leaves that these rows seal, run the
 * pass, deliver the tokens. The decisions are in schedule.ts.
 *
 * If the device samples, the next pass is recorded while the current one runs: its input is a handle of the sampled token,
 * whose id the host has not read yet. If a request ends with that token, its sequence holds one token too many.
 */
import { type KvCache, type Owner, sharedLength } from '../cache/kv-cache.ts';
import type { Sequence } from '../cache/sequence.ts';
import { CapacityError } from '../errors.ts';
import { yieldToEventLoop } from '../event-loop.ts';
import { type Chunk, forward } from '../model/forward.ts';
import type { Plan } from '../plan/plan.ts';
import type { Engine } from './engine.ts';
import type { Sampled, Sampler } from './sample.ts';
import {
  admissionOrder,
  type Candidate,
  chooseRows,
  chooseVictim,
  notePass,
  type PassTimes,
  type Piece,
  promptRowsPerPass,
} from './schedule.ts';

/** Checked between two passes; an AbortSignal is one. */
export interface Cancellation {
  readonly aborted: boolean;
}

/** A prompt to continue, and who is told about it. */
export interface Request {
  readonly prompt: readonly number[];
  /** Tenants get equal shares of the device. */
  readonly tenant: string;
  /** Requests with the same salt share prefixes. */
  readonly salt: string;
  /** Who continues the sequence afterwards, exactly where it ended; undefined: nobody. */
  readonly owner?: Owner;
  readonly sampler: Sampler;
  readonly maxTokens: number;
  /** In shadow mode, whether decoding reads the f16 pages too, as prompts do. */
  readonly readExact?: boolean;
  readonly cancellation?: Cancellation;
  /** Whether the reader has fallen behind: then it gets no further tokens for now. */
  isParked(): boolean;
  /** When it is first admitted: how many tokens of the prompt were known. */
  onStart(reusedTokens: number): void;
  /** After each chunk of the prompt: tokens in the cache. */
  onPrefill(tokens: number): void;
  /** Returns false to end. `dropped`: tokens that the sequence has dropped by sliding. */
  onToken(sampled: Sampled, dropped: number): boolean;
  /** Before the sequence is released; no pass is running on it. Not called after an error. */
  onEnd?(sequence: Sequence): void | Promise<void>;
}

export interface SchedulerStats {
  waiting: number;
  running: number;
  preemptions: number;
}

export interface Scheduler {
  readonly stats: SchedulerStats;
  /** Resolves when the request has ended or was cancelled, and nothing of it runs any more. */
  submit(request: Request): Promise<void>;
  /** Call it when a reader reads again, or a request was cancelled. */
  wake(): void;
}

/** A request in the scheduler. */
interface Task extends Candidate {
  request: Request;
  lastTurn: number;
  /** The prompt and the tokens so far. */
  tokens: number[];
  /** While it is running. */
  sequence?: Sequence;
  /** Tokens before this are prompt rows. */
  promptEnd: number;
  /** The next token, sampled on the device and not read yet. */
  handle?: number;
  /** Tokens that are sampled, or are being sampled. */
  sampled: number;
  /** Passes that it takes part in. */
  flights: number;
  started: boolean;
  ended: boolean;
  error?: unknown;
  settle(): void;
}

/** A pass whose results are not delivered yet. */
interface Flight {
  tasks: readonly Task[];
  /** Those that read their prompt: tokens in the cache after the pass. */
  prompts: readonly { task: Task; held: number }[];
  delivered: Promise<void>;
  /** Whether the device samples all its tokens. */
  deviceSampled: boolean;
  land(): void;
  started: number;
  decodeRows: number;
  promptRows: number;
}

const TOO_SMALL =
  'The KV cache is too small for this request alone. Raise kvMemory, use a codec with fewer bits, or shorten the prompt.';

export function createScheduler(engine: Engine, cache: KvCache, plan: Plan, maxSequences: number): Scheduler {
  const waiting = new Set<Task>();
  const running = new Set<Task>();
  let arrivals = 0;
  let turns = 0;
  let preemptions = 0;
  let times: PassTimes = {};
  let lastLanding = 0;
  let isLooping = false;
  let wakeUp: () => void = () => {};

  /** Releases a task's sequence and settles it, once no pass works on it. */
  const finish = async (task: Task) => {
    const { sequence, request } = task;
    running.delete(task);
    waiting.delete(task);
    task.sequence = undefined;
    try {
      if (sequence && task.error === undefined) {
        await request.onEnd?.(sequence);
        cache.keep(sequence, request.owner);
      }
    } catch (error) {
      fail([task], error);
    } finally {
      // After an error the content is unknown.
      if (task.error !== undefined) sequence?.dispose();
      task.settle();
    }
  };

  const fail = (tasks: Iterable<Task>, error: unknown) => {
    for (const task of tasks) {
      task.error ??= error ?? new Error('unknown');
      task.ended = true;
    }
  };

  const admit = () => {
    const candidates = [...waiting].filter(task => !task.ended && !task.request.isParked());
    for (const task of admissionOrder(candidates, [...running])) {
      if (isBeingComputed(task)) continue;
      const sequence = open(task);
      if (task.ended) continue;
      if (!sequence) return;
      task.sequence = sequence;
      waiting.delete(task);
      running.add(task);
      task.promptEnd = task.tokens.length;
      if (!task.started) task.request.onStart(sequence.length);
      task.started = true;
    }
  };

  /** Opens a task's sequence if there is room beside the others. Those whose readers have fallen behind make room. */
  const open = (task: Task): Sequence | undefined => {
    const { tokens, request } = task;
    for (;;) {
      const isAlone = running.size === 0;
      try {
        if (isAlone || (running.size < maxSequences && cache.fits(tokens, request.salt, running.size)))
          return cache.open(tokens, request.salt, request.owner);
      } catch (error) {
        if (isAlone || !(error instanceof CapacityError)) fail([task], error);
      }
      if (task.ended || !preemptParked()) return undefined;
    }
  };

  /** Whether a running prompt will soon have sealed more of this one than is known: then waiting is cheaper. */
  const isBeingComputed = ({ tokens, request }: Task): boolean => {
    if (!cache.sharesLeaves) return false;
    const { pageTokens } = plan;
    const known = cache.known(tokens, request.salt);
    return [...running].some(other => {
      if (other.request.salt !== request.salt || other.promptRows === 0 || other.ended) return false;
      const shared = Math.floor(sharedLength(other.tokens, tokens) / pageTokens) * pageTokens;
      return shared > known && other.sequence!.length <= shared;
    });
  };

  const preemptParked = (): boolean => {
    const parked = [...running].find(task => task.request.isParked() && task.flights === 0);
    if (parked) preempt(parked);
    return parked !== undefined;
  };

  const bytesFor = (pieces: readonly Piece<Task>[]): number =>
    pieces.reduce((sum, { request: task, rows }) => sum + task.sequence!.bytesFor(rows), 0);

  /** Makes room for the leaves and tails of the rows; takes requests off the device until they fit. */
  const reserve = (chosen: Piece<Task>[]): Piece<Task>[] => {
    let pieces = chosen;
    for (;;) {
      if (cache.makeRoom(bytesFor(pieces))) return pieces;
      // What is in flight can make room only after it has landed.
      if ([...running].some(({ flights }) => flights > 0)) return [];
      const victim = chooseVictim([...running])!;
      if (running.size === 1) fail([victim], new CapacityError(TOO_SMALL));
      else if (!preemptParked()) preempt(victim);
      pieces = pieces.filter(({ request: task }) => running.has(task) && !task.ended);
    }
  };

  /** Its leaves stay cached, so coming back is cheap. */
  const preempt = (task: Task) => {
    task.sequence?.dispose();
    task.sequence = undefined;
    running.delete(task);
    waiting.add(task);
    preemptions++;
  };

  /** Records a pass, if there is room for it. If that fails, all its requests fail: what their sequences hold is unknown. */
  const start = async (pieces: readonly Piece<Task>[]): Promise<Flight | undefined> => {
    try {
      return await record(pieces);
    } catch (error) {
      for (const { request } of pieces) fail([request], error);
      return undefined;
    }
  };

  const record = async (pieces: readonly Piece<Task>[]): Promise<Flight | undefined> => {
    const started = performance.now();
    const tasks = pieces.map(({ request }) => request);
    const results: (() => void)[] = [];
    const addResult = (task: Task, sample: (sampler: Sampler) => Sampled) => {
      const dropped = task.sequence!.droppedTokens;
      results.push(() => deliver(task, () => sample(task.request.sampler), dropped));
    };
    const recorded = await engine.exclusive(async ({ device, config, weights, rope, scratch, batchSize }) => {
      // While this waited, a session that is restored may have taken what was reserved: then the next turn reserves again.
      if (!cache.makeRoom(bytesFor(pieces))) return undefined;
      const chunks = pieces.map(({ request: task, rows }) => createChunk(task, rows));
      const taskOf = new Map<Chunk, Task>(chunks.map((chunk, i) => [chunk, tasks[i]]));
      const promptRows = chunks.reduce((sum, { prefill, tokens }) => sum + (prefill ? tokens.length : 0), 0);
      const decodeRows = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0) - promptRows;
      const pass = await forward(device, config, weights, rope, scratch, chunks, {
        onLogits: (chunk, _row, logits) => addResult(taskOf.get(chunk)!, sampler => sampler.sample(logits)),
        onToken: (chunk, id) => addResult(taskOf.get(chunk)!, sampler => sampler.accept(id)),
        onHandle(chunk, handle) {
          taskOf.get(chunk)!.handle = handle;
        },
      });
      batchSize.adapt(promptRows + decodeRows, pass.longestBlockMs);
      return { chunks, promptRows, decodeRows, delivered: pass.delivered };
    });
    if (!recorded) return undefined;
    const { chunks, delivered, decodeRows, promptRows } = recorded;
    for (const task of tasks) {
      task.flights++;
      task.lastTurn = turns++;
    }
    // It may fail before it is landed.
    delivered.catch(() => {});
    const deviceSampled = chunks.every(({ logits, sampling }) => logits === 'none' || sampling);
    const land = () => {
      for (const result of results) result();
    };
    const prompts = chunks.flatMap((chunk, i) =>
      chunk.prefill ? [{ task: tasks[i], held: chunk.sequence.length }] : [],
    );
    return { tasks, prompts, delivered, deviceSampled, land, started, decodeRows, promptRows };
  };

  const createChunk = (task: Task, rows: number): Chunk => {
    const sequence = task.sequence!;
    const prefill = sequence.length < task.promptEnd;
    const end = sequence.length + rows;
    const tokens = prefill ? task.tokens.slice(sequence.length, end) : [task.handle ?? task.tokens[sequence.length]];
    task.handle = undefined;
    const isLast = !prefill || end === task.promptEnd;
    if (isLast) task.sampled++;
    const sampling = isLast && engine.device.sampleTokens ? task.request.sampler.deviceSampling() : undefined;
    const exact = prefill || task.request.readExact;
    return { sequence, tokens, prefill, exact, logits: isLast ? 'last' : 'none', sampling };
  };

  const deliver = (task: Task, sample: () => Sampled, dropped: number) => {
    if (task.ended) return;
    const { sequence, request, tokens } = task;
    try {
      const sampled = sample();
      tokens.push(sampled.id);
      // The pass ahead has added its handle; if this request was left out of it, the next one takes the id.
      if (sequence && sequence.length >= tokens.length) sequence.setToken(tokens.length - 1, sampled.id);
      else task.handle = undefined;
      if (!request.onToken(sampled, dropped)) task.ended = true;
    } catch (error) {
      fail([task], error);
    }
  };

  const notePrompt = (task: Task, held: number) => {
    if (task.ended || !task.sequence) return;
    try {
      task.request.onPrefill(held);
      if (held === task.promptEnd) cache.snapshot(task.sequence);
    } catch (error) {
      fail([task], error);
    }
  };

  const land = async (flight: Flight) => {
    const { tasks, decodeRows, promptRows, started } = flight;
    try {
      await flight.delivered;
      for (const { task, held } of flight.prompts) notePrompt(task, held);
      flight.land();
      const now = performance.now();
      times = notePass(times, { decodeRows, promptRows, ms: now - Math.max(started, lastLanding) });
      lastLanding = now;
    } catch (error) {
      fail(tasks, error);
    }
    for (const task of tasks) task.flights--;
  };

  /** Runs a pass. Returns what is in flight afterwards, and whether anything happened at all. */
  const turn = async (flying: Flight | undefined): Promise<{ flying?: Flight; idle: boolean }> => {
    let idle = !flying;
    for (const task of [...waiting, ...running]) {
      if (task.request.cancellation?.aborted) task.ended = true;
      if (!task.ended || task.flights > 0) continue;
      await finish(task);
      idle = false;
    }
    admit();
    const { rows } = engine.batchSize;
    const active = [...running].filter(task => !task.ended);
    const decoding = active.some(task => task.promptRows === 0);
    const pieces = reserve(chooseRows(active, rows, promptRowsPerPass(times, decoding, rows)));
    const flight = pieces.length > 0 ? await start(pieces) : undefined;
    if (flying) await land(flying);
    idle &&= pieces.length === 0 && ![...waiting, ...running].some(task => task.ended);
    if (!flight || flight.deviceSampled) return { flying: flight, idle };
    await land(flight);
    return { idle };
  };

  const run = async () => {
    isLooping = true;
    let flying: Flight | undefined;
    while (waiting.size + running.size > 0 || flying) {
      await yieldToEventLoop();
      const woken = new Promise<void>(resolve => {
        wakeUp = resolve;
      });
      try {
        const turned = await turn(flying);
        flying = turned.flying;
        // All readers have fallen behind: there is nothing to do until one of them reads again.
        if (turned.idle && waiting.size + running.size > 0) await woken;
      } catch (error) {
        // A bug: nobody may wait for ever. The next turn tells them.
        flying = undefined;
        fail([...waiting, ...running], error);
        for (const task of running) task.flights = 0;
      }
    }
    isLooping = false;
  };

  return {
    get stats() {
      return { waiting: waiting.size, running: running.size, preemptions };
    },
    submit(request) {
      return new Promise<void>((resolve, reject) => {
        const task: Task = {
          request,
          arrival: arrivals++,
          tenant: request.tenant,
          tokens: [...request.prompt],
          promptEnd: request.prompt.length,
          sampled: 0,
          flights: 0,
          lastTurn: -1,
          started: false,
          ended: false,
          get promptRows() {
            const rows = Math.max(0, this.promptEnd - (this.sequence?.length ?? 0));
            return Math.min(rows, this.sequence?.maxChunk ?? rows);
          },
          get ready() {
            if (!this.sequence || this.sampled >= request.maxTokens || request.isParked()) return false;
            return this.handle !== undefined || this.sequence.length < this.tokens.length;
          },
          settle: () => (task.error === undefined ? resolve() : reject(task.error)),
        };
        waiting.add(task);
        wakeUp();
        if (!isLooping) void run();
      });
    },
    wake: () => wakeUp(),
  };
}
