/**
 * A conversation does one thing at a time: two answers would write into the same cache, and nothing may be freed while a
 * pass runs on it. Answers wait for a save or reset in progress; a second answer is refused.
 */
import { createStream, type Stream, type StreamBody } from '../engine/stream.ts';
import { InputError } from '../util/errors.ts';

export interface TurnTaking {
  /** Whether an answer is being read. */
  readonly isAnswering: boolean;
  /** A stream that takes its turn when it is first read. */
  stream<T>(body: StreamBody<T>, signal?: AbortSignal): Stream<T>;
  /** Runs work that answers wait for, after such work before it. */
  run(work: () => Promise<void>): Promise<void>;
  /** Waits for such work, and acts at once when nothing is in progress any more. */
  afterWork<T>(act: () => T): Promise<T>;
  /** Throws while an answer is being read. */
  checkIdle(): void;
  /** Ends the answer that is being read, and waits for its pass. */
  stopAnswer(): Promise<void>;
}

/** `checkOpen` throws after disposal. `onAnswering` is told when it starts and stops answering. */
export function createTurnTaking(checkOpen: () => void, onAnswering: (isAnswering: boolean) => void): TurnTaking {
  /** The stream that is being read. */
  let running: Stream<unknown> | undefined;
  let work: Promise<void> | undefined;

  // Acting in the caller, after an await, would leave a gap in which a reset or a disposal can begin.
  const afterWork = async <T>(act: () => T): Promise<T> => {
    checkOpen();
    while (work) await work.catch(() => {});
    checkOpen();
    return act();
  };
  const checkIdle = () => {
    if (!running) return;
    throw new InputError('This conversation is already answering. Wait until it has finished, or open another one.');
  };

  return {
    get isAnswering() {
      return running !== undefined;
    },
    stream<T>(body: StreamBody<T>, signal?: AbortSignal) {
      checkOpen();
      const created: Stream<T> = createStream(async function* (cancellation, result) {
        await afterWork(() => {
          checkIdle();
          running = created;
          onAnswering(true);
        });
        try {
          yield* body(cancellation, result);
        } finally {
          running = undefined;
          onAnswering(false);
        }
      }, signal);
      return created;
    },
    run(next) {
      const done = (work ? work.catch(() => {}).then(next) : next()).finally(() => {
        if (work === done) work = undefined;
      });
      work = done;
      return done;
    },
    afterWork,
    checkIdle,
    async stopAnswer() {
      await running?.return();
    },
  };
}
