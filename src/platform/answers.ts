/** The answers of a thread to its messages, which come in the order of the messages. */
interface Waiting {
  resolve(answer: unknown): void;
  reject(error: Error): void;
}

export interface Answers {
  /** Waits for the answer to a message that is sent now. */
  next(): Promise<unknown>;
  receive(answer: unknown): void;
  /** Rejects all that wait, now and later. */
  end(why: string): void;
  readonly waiting: number;
}

export function createAnswers(): Answers {
  let waiting: Waiting[] = [];
  let ended: Error | undefined;
  return {
    get waiting() {
      return waiting.length;
    },
    next: () =>
      new Promise((resolve, reject) => {
        if (ended) reject(ended);
        else waiting.push({ resolve, reject });
      }),
    receive: answer => waiting.shift()?.resolve(answer),
    end(why) {
      ended ??= new Error(why);
      for (const { reject } of waiting) reject(ended);
      waiting = [];
    },
  };
}
