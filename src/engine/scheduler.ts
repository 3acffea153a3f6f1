/**
 * The one loop that generates tokens. Each turn: drop what was cancelled, admit waiting requests while there is room, give
 * every decoding request its row and prompts the rows that are left, make room for the leaves that these rows seal, run the
 * pass, deliver the tokens. The decisions are in schedule.ts.
 *
 * If the device samples, the next pass is recorded while the current one runs: its input is a handle of the sampled token,
 * whose id the host has not read yet. If a request ends with that token, its sequence holds one token too many. Requests
 * that the host samples are not ready before their token is delivered, so they are left out of that pass.
 */
import { type KvCache, sharedLength } from '../cache/kv-cache.ts';
import type { Pause } from '../cache/pause.ts';
import type { Sequence } from '../cache/sequence.ts';
import { type Chunk, forward } from '../model/forward.ts';
import type { Plan } from '../plan/plan.ts';
import { yieldToEventLoop } from '../platform/event-loop.ts';
import { CapacityError, ContextError, type Wording } from '../util/errors.ts';
import type { Engine } from './engine.ts';
import type { Guard } from './guard.ts';
import type { Request } from './request.ts';
import type { Sampled, Sampler } from './sample.ts';
import {
  admissionOrder,
  chooseRows,
  chooseVictim,
  notePass,
  type PassTimes,
  type Piece,
  promptRowsPerPass,
  shouldRunAhead,
  warmingWait,
} from './schedule.ts';
import { createTask, type Task } from './task.ts';

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

/** A pass whose results are not delivered yet. */
interface Flight {
  tasks: readonly Task[];
  /** Those that read their prompt: tokens in the cache after the pass. */
  prompts: readonly { task: Task; held: number }[];
  /** Copies of sequences as they are after the pass, to be kept when it has succeeded. */
  snapshots: readonly Sequence[];
  delivered: Promise<void>;
  /** Whether the next pass is recorded before this one has ended. */
  runsAhead: boolean;
  /** To deliver its tokens. */
  results: readonly (() => void)[];
  started: number;
  decodeRows: number;
  promptRows: number;
}

/** Fewer tokens are not worth waiting for. */
const MIN_SHARED_TOKENS = 16;

const TOO_SMALL: Wording = option =>
  `The KV cache is too small for this request alone. Raise ${option('kvMemory')}, use a codec with fewer bits, or shorten ` +
  'the prompt.';

/** `guard`: checks the codes of sealed pages. */
export function createScheduler(
  engine: Engine,
  cache: KvCache,
  plan: Plan,
  maxSequences: number,
  guard?: Guard,
): Scheduler {
  const waiting = new Set<Task>();
  const running = new Set<Task>();
  let arrivals = 0;
  let turns = 0;
  let preemptions = 0;
  let times: PassTimes = {};
  let lastLanding = 0;
  /** How long the host last took to record a pass without prompts. */
  let recordMs = 0;
  let isLooping = false;
  let wakeUp: () => void = () => {};
  /** How long requests may still wait for pages that are on their way, in ms. */
  let patience = Number.POSITIVE_INFINITY;

  /** Releases a task's sequence and settles it, once no pass works on it. */
  const finish = async (task: Task) => {
    const { sequence, request } = task;
    running.delete(task);
    waiting.delete(task);
    task.sequence = undefined;
    task.warming?.cancel();
    try {
      if (sequence && task.error === undefined) {
        await request.onEnd?.(sequence);
        cache.keep(sequence, request.owner);
      }
    } catch (error) {
      fail([task], error);
    }
    try {
      if (task.error !== undefined) sequence?.discard();
    } catch (error) {
      // The first error tells more; who has submitted the request waits for it.
      fail([task], error);
    }
    task.settle();
  };

  const fail = (tasks: Iterable<Task>, error: unknown) => {
    for (const task of tasks) {
      task.error ??= error ?? new Error('unknown');
      task.ended = true;
    }
  };

  const enqueue = (task: Task) => {
    waiting.add(task);
    task.sharedWith = new WeakMap();
    task.isWarmedAgain = false;
    warm(task);
  };

  /** Begins to fetch pages of its prompt from the tiers, or to decode those that were spilled. */
  const warm = (task: Task) => {
    task.warming = cache.warm(task.tokens, task.request.salt, () => wakeUp(), task.request.owner);
  };

  /** Whether pages of its prompt are on their way, and come sooner than they could be computed. */
  const isWarming = (task: Task): boolean => {
    // Without a warming there was nothing to warm when it was queued; since then, room may have been made of its pages.
    if ((task.warming?.isIncomplete ?? true) && !task.isWarmedAgain && hasRoom(task)) {
      task.isWarmedAgain = true;
      warm(task);
    }
    if (!task.warming?.isActive) return false;
    const wait = warmingWait(task.warming.progress, times, plan.pageTokens);
    if (wait > 0) patience = Math.min(patience, wait);
    return wait > 0;
  };

  const admit = (pause: Pause) => {
    patience = Number.POSITIVE_INFINITY;
    const candidates = [...waiting].filter(task => !task.ended && !task.request.isParked());
    for (const task of admissionOrder(candidates, [...running])) {
      if (isBeingComputed(task) || isWarming(task)) continue;
      const sequence = open(pause, task);
      if (task.ended) continue;
      if (!sequence) return;
      task.sequence = sequence;
      task.warming?.cancel();
      task.warming = undefined;
      waiting.delete(task);
      running.add(task);
      task.promptEnd = task.tokens.length;
      if (!task.started) task.request.onStart(sequence.length);
      task.started = true;
    }
  };

  const hasRoom = ({ tokens, request, path }: Task): boolean =>
    running.size === 0 || (running.size < maxSequences && cache.fits(tokens, request.salt, running.size, path));

  /** Opens a task's sequence if there is room beside the others. Those whose readers have fallen behind make room. */
  const open = (pause: Pause, task: Task): Sequence | undefined => {
    const { tokens, request } = task;
    for (;;) {
      const isAlone = running.size === 0;
      try {
        if (hasRoom(task)) {
          const sequence = cache.open(pause, tokens, request.salt, request.owner);
          if (request.sourceOf) sequence.setSources(request.sourceOf);
          return sequence;
        }
      } catch (error) {
        if (isAlone || !(error instanceof CapacityError)) fail([task], error);
      }
      if (task.ended || !preemptParked()) return undefined;
    }
  };

  /** Whether a running prompt will soon have read more of this one than is known: then waiting is cheaper. */
  const isBeingComputed = (task: Task): boolean => {
    const { tokens, request, path } = task;
    const known = cache.known(tokens, request.salt, path);
    return [...running].some(other => {
      if (other.request.salt !== request.salt || other.promptRows === 0 || other.ended) return false;
      const shared = task.sharedWith.get(other) ?? sharedLength(other.tokens, tokens);
      task.sharedWith.set(other, shared);
      const point = cache.sharesLeaves ? shared : (other.request.snapshotAt?.findLast(one => one <= shared) ?? 0);
      return point > known && point >= MIN_SHARED_TOKENS && other.sequence!.length <= point;
    });
  };

  const preemptParked = (): boolean => {
    const parked = [...running].find(task => task.request.isParked() && task.flights === 0);
    if (parked) preempt(parked);
    return parked !== undefined;
  };

  const bytesFor = (pieces: readonly Piece<Task>[]): number =>
    pieces.reduce((sum, { request: task, rows }) => sum + task.sequence!.bytesFor(rows), 0);

  /**
   * The rows of the next pass, with room for their leaves and tails: requests are taken off the device until the rows of
   * the others fit. Those are chosen again, because a pass may have had rows of the request that made room only.
   */
  const reserve = (choose: () => Piece<Task>[]): Piece<Task>[] => {
    for (;;) {
      const pieces = choose();
      if (cache.makeRoom(bytesFor(pieces))) return pieces;
      // What is in flight can make room only after it has landed.
      if ([...running].some(({ flights }) => flights > 0)) return [];
      const victim = chooseVictim([...running])!;
      if (running.size === 1) fail([victim], new ContextError(TOO_SMALL));
      else if (!preemptParked()) preempt(victim);
    }
  };

  /** Its leaves stay cached, so coming back is cheap. */
  const preempt = (task: Task) => {
    if (task.sequence) cache.setAside(task.sequence, task.request.owner);
    task.sequence = undefined;
    running.delete(task);
    enqueue(task);
    preemptions++;
  };

  /** Admits requests, chooses rows, and records their pass: all of it between two passes, while nothing else runs. */
  const start = (): Promise<Flight | undefined> =>
    engine.exclusive(async (_, pause) => {
      admit(pause);
      const pieces = reserve(() => {
        const active = [...running].filter(task => !task.ended);
        const { rows } = engine.batchSize;
        return chooseRows(active, rows, promptRowsPerPass(times, active.some(isDecoding), rows));
      });
      return pieces.length > 0 ? recordOrFail(pieces) : undefined;
    });

  const isDecoding = ({ promptRows }: Task) => promptRows === 0;

  /** If recording fails, all requests of the pass fail: what their sequences hold is unknown. */
  const recordOrFail = async (pieces: readonly Piece<Task>[]): Promise<Flight | undefined> => {
    try {
      return await record(pieces);
    } catch (error) {
      for (const { request } of pieces) fail([request], error);
      return undefined;
    }
  };

  const record = async (pieces: readonly Piece<Task>[]): Promise<Flight> => {
    const { device, config, weights, rope, scratch, batchSize } = engine;
    const started = engine.now();
    const tasks = pieces.map(({ request }) => request);
    const results: (() => void)[] = [];
    const addResult = (task: Task, sample: (sampler: Sampler) => Sampled) => {
      const dropped = task.sequence!.droppedTokens;
      results.push(() => deliver(task, () => sample(task.request.sampler), dropped));
    };
    const chunks = pieces.map(({ request: task, rows }) => createChunk(task, rows));
    const taskOf = new Map<Chunk, Task>(chunks.map((chunk, i) => [chunk, tasks[i]]));
    const promptRows = chunks.reduce((sum, { prefill, tokens }) => sum + (prefill ? tokens.length : 0), 0);
    const decodeRows = chunks.reduce((sum, { tokens }) => sum + tokens.length, 0) - promptRows;
    const { delivered, longestBlockMs } = await forward(device, config, weights, rope, scratch, chunks, {
      onLogits: (chunk, _row, logits) => addResult(taskOf.get(chunk)!, sampler => sampler.sample(logits)),
      onToken: (chunk, id) => addResult(taskOf.get(chunk)!, sampler => sampler.accept(id)),
      onHandle(chunk, handle) {
        taskOf.get(chunk)!.handle = handle;
      },
      codeCheck: guard?.check,
    });
    batchSize.adapt(promptRows + decodeRows, longestBlockMs);
    if (promptRows === 0) recordMs = engine.now() - started;
    const snapshots = tasks.flatMap(task => takeSnapshot(task) ?? []);
    for (const task of tasks) {
      task.flights++;
      task.lastTurn = turns++;
    }
    // It may fail before it is landed.
    delivered.catch(() => {});
    const sampled = chunks.filter(({ logits }) => logits !== 'none');
    const onDevice = sampled.filter(({ sampling }) => sampling).length;
    const sampledRows = { onDevice, onHost: sampled.length - onDevice };
    const runsAhead = shouldRunAhead(sampledRows, times.decode ?? Number.POSITIVE_INFINITY, recordMs);
    const prompts = chunks.flatMap((chunk, i) =>
      chunk.prefill ? [{ task: tasks[i], held: chunk.sequence.length }] : [],
    );
    return { tasks, prompts, snapshots, delivered, runsAhead, results, started, decodeRows, promptRows };
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
    const exact = prefill || task.request.readExact || plan.mode === 'two-tier';
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

  /** Copies a sequence after its chunk is recorded: the next pass, which may be recorded before this one ends, changes it. */
  const takeSnapshot = (task: Task): Sequence | undefined => {
    const { sequence, snapshotPoints } = task;
    try {
      return sequence && snapshotPoints.includes(sequence.length) ? cache.snapshot(sequence) : undefined;
    } catch (error) {
      fail([task], error);
      return undefined;
    }
  };

  const notePrompt = (task: Task, held: number) => {
    if (task.ended || !task.sequence) return;
    try {
      task.request.onPrefill(held);
    } catch (error) {
      fail([task], error);
    }
  };

  const land = async (flight: Flight) => {
    const { tasks, snapshots, decodeRows, promptRows, started } = flight;
    try {
      await flight.delivered;
      guard?.throwIfLost();
      for (const { task, held } of flight.prompts) notePrompt(task, held);
      for (const deliverToken of flight.results) deliverToken();
      const now = engine.now();
      times = notePass(times, { decodeRows, promptRows, ms: now - Math.max(started, lastLanding) });
      lastLanding = now;
      for (const snapshot of snapshots) cache.keep(snapshot);
    } catch (error) {
      for (const snapshot of snapshots) snapshot.dispose();
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
    const flight = await start().catch(error => {
      // The model was disposed, or it is a bug: nobody may wait for ever.
      fail([...waiting, ...running], error);
      return undefined;
    });
    if (flying) await land(flying);
    idle &&= !flight && ![...waiting, ...running].some(task => task.ended);
    if (!flight || flight.runsAhead) return { flying: flight, idle };
    await land(flight);
    return { idle };
  };

  const wokenWithin = async (woken: Promise<void>) => {
    const timer = patience < Number.POSITIVE_INFINITY ? setTimeout(wakeUp, patience) : undefined;
    await woken;
    clearTimeout(timer);
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
        // All readers have fallen behind, or pages are on their way: there is nothing to do until one reads or arrives.
        if (turned.idle && waiting.size + running.size > 0) await wokenWithin(woken);
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
        const task = createTask(request, arrivals++, () => (task.error === undefined ? resolve() : reject(task.error)));
        enqueue(task);
        wakeUp();
        if (!isLooping) void run();
      });
    },
    wake: () => wakeUp(),
  };
}
