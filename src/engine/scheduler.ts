/**
 * The one loop that generates tokens. Each turn: drop what was cancelled, admit waiting requests while there is room, give
 * every decoding request its row and prompts the rows that are left, make room for the leaves that these rows seal, run the
 * pass, deliver the tokens. The decisions are in schedule.ts, who is on the device in admission.ts, and a pass in pass.ts.
 *
 * If the device samples, the next pass is recorded while the current one runs: its input is a handle of the sampled token,
 * whose id the host has not read yet. If a request ends with that token, its sequence holds one token too many. Requests
 * that the host samples are not ready before their token is delivered, so they are left out of that pass.
 */
import type { KvCache } from '../cache/kv-cache.ts';
import type { Plan } from '../plan/plan.ts';
import { yieldToEventLoop } from '../platform/event-loop.ts';
import { createAdmission } from './admission.ts';
import { createDrafter } from './drafter.ts';
import type { Engine } from './engine.ts';
import type { Guard } from './guard.ts';
import { type RecordedPass, recordPass } from './pass.ts';
import type { Request } from './request.ts';
import {
  addDrafts,
  chooseRows,
  notePass,
  type PassTimes,
  type Piece,
  promptRowsPerPass,
  shouldRunAhead,
} from './schedule.ts';
import { createTask, fail, type Task } from './task.ts';

export interface SchedulerStats {
  waiting: number;
  running: number;
  preemptions: number;
  /** Tokens that were guessed, and those of them that were right. */
  draftedTokens: number;
  acceptedTokens: number;
}

export interface SchedulerOptions {
  maxSequences: number;
  /** The part of a pass's time that prompts get while tokens are decoded. Default: see `promptRowsPerPass`. */
  prefillShare?: number;
  /** Checks the codes of sealed pages. */
  guard?: Guard;
  /** Whether tokens are guessed (drafter.ts), where the host samples. Default: false. */
  speculate?: boolean;
}

export interface Scheduler {
  readonly stats: SchedulerStats;
  /** Resolves when the request has ended or was cancelled, and nothing of it runs any more. */
  submit(request: Request): Promise<void>;
  /** Call it when a reader reads again, or a request was cancelled. */
  wake(): void;
}

/** A recorded pass whose tokens are not delivered yet. */
interface PassInFlight extends RecordedPass {
  started: number;
  /** Whether the next pass is recorded before this one has ended. */
  runsAhead: boolean;
}

export function createScheduler(
  engine: Engine,
  cache: KvCache,
  plan: Plan,
  { maxSequences, prefillShare, guard, speculate }: SchedulerOptions,
): Scheduler {
  let wakeUp: () => void = () => {};
  const wake = () => wakeUp();
  const admission = createAdmission(cache, plan.pageTokens, maxSequences, wake);
  const { waiting, running } = admission;
  let arrivals = 0;
  let turns = 0;
  let times: PassTimes = {};
  let lastDelivery = 0;
  /** How long the host last took to record a pass without prompts. */
  let recordMs = 0;
  let isLooping = false;
  let [draftedTokens, acceptedTokens] = [0, 0];
  const tasks = () => [...waiting, ...running];

  const choosePieces = () => {
    const active = [...running].filter(task => !task.ended);
    const { rows } = engine.batchSize;
    const decodes = active.some(({ promptRows }) => promptRows === 0);
    return chooseRows(active, rows, promptRowsPerPass(times, decodes, rows, prefillShare));
  };

  /** Guesses tokens where no prompt waits for rows, and nobody must make room for them. */
  const withDrafts = (pieces: Piece<Task>[]): Piece<Task>[] => {
    if (!speculate || engine.device.sampleTokens || pieces.some(({ request }) => request.promptRows > 0)) return pieces;
    for (const { request: task } of pieces) task.drafter ??= createDrafter(task.tokens);
    const drafted = addDrafts(pieces, engine.batchSize.rows, times);
    return admission.hasRoomFor(drafted) ? drafted : pieces;
  };

  /** Admits requests, chooses rows, and records their pass: all of it between two passes, while nothing else runs. */
  const recordNext = (): Promise<PassInFlight | 'again' | undefined> =>
    engine.exclusive(async pause => {
      admission.admit(pause, times);
      const pieces = withDrafts(admission.reserve(choosePieces));
      if (pieces.length === 0) return undefined;
      const started = engine.now();
      try {
        const pass = await recordPass(engine, plan, guard, pieces);
        if (!pass) {
          // From now on others make room for a request, as they do when the cache is full.
          cache.limitToUsed();
          return 'again';
        }
        if (pass.promptRows === 0) recordMs = engine.now() - started;
        for (const task of pass.tasks) {
          task.passes++;
          task.lastTurn = turns++;
        }
        return {
          ...pass,
          started,
          runsAhead: shouldRunAhead(pass.sampledRows, times.decode ?? Number.POSITIVE_INFINITY, recordMs),
        };
      } catch (error) {
        // What the sequences of the pass hold is unknown.
        for (const { request } of pieces) fail([request], error);
        return undefined;
      }
    });

  const deliver = async (pass: PassInFlight) => {
    try {
      const accepted = await pass.deliver();
      draftedTokens += pass.draftRows;
      acceptedTokens += accepted;
      const now = engine.now();
      times = notePass(times, { ...pass, ms: now - Math.max(pass.started, lastDelivery) });
      lastDelivery = now;
    } catch (error) {
      fail(pass.tasks, error);
    }
    for (const task of pass.tasks) task.passes--;
  };

  /** Releases a task's sequence and settles it, once no pass works on it. */
  const finish = async (task: Task) => {
    const { sequence, request } = task;
    admission.remove(task);
    task.sequence = undefined;
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

  /** Runs a pass. Returns the pass that is in flight afterwards, and whether anything happened at all. */
  const turn = async (inFlight: PassInFlight | undefined): Promise<{ inFlight?: PassInFlight; idle: boolean }> => {
    let idle = !inFlight;
    for (const task of tasks()) {
      if (task.request.cancellation?.aborted) task.ended = true;
      if (!task.ended || task.passes > 0) continue;
      await finish(task);
      idle = false;
    }
    const recorded = await recordNext().catch(error => {
      // The model was disposed, or it is a bug: nobody may wait forever.
      fail(tasks(), error);
      return undefined;
    });
    const pass = recorded === 'again' ? undefined : recorded;
    if (inFlight) await deliver(inFlight);
    idle &&= !recorded && !tasks().some(task => task.ended);
    if (!pass || pass.runsAhead) return { inFlight: pass, idle };
    await deliver(pass);
    return { idle };
  };

  /** Waits until a reader reads or pages arrive, but not longer than requests should wait for pages. */
  const wokenInTime = async (woken: Promise<void>) => {
    const { maxWaitMs } = admission;
    const timer = maxWaitMs < Number.POSITIVE_INFINITY ? setTimeout(wake, maxWaitMs) : undefined;
    await woken;
    clearTimeout(timer);
  };

  const run = async () => {
    isLooping = true;
    let inFlight: PassInFlight | undefined;
    while (waiting.size + running.size > 0 || inFlight) {
      await yieldToEventLoop();
      const woken = new Promise<void>(resolve => {
        wakeUp = resolve;
      });
      try {
        const turned = await turn(inFlight);
        inFlight = turned.inFlight;
        // All readers have fallen behind, or pages are on their way.
        if (turned.idle && waiting.size + running.size > 0) await wokenInTime(woken);
      } catch (error) {
        // A bug: nobody may wait forever. The next turn tells them.
        inFlight = undefined;
        fail(tasks(), error);
        for (const task of running) task.passes = 0;
      }
    }
    isLooping = false;
  };

  return {
    get stats() {
      const { preemptions } = admission;
      return { waiting: waiting.size, running: running.size, preemptions, draftedTokens, acceptedTokens };
    },
    submit(request) {
      return new Promise<void>((resolve, reject) => {
        const task = createTask(request, arrivals++, () => (task.error === undefined ? resolve() : reject(task.error)));
        admission.enqueue(task);
        wake();
        if (!isLooping) void run();
      });
    },
    wake,
  };
}
