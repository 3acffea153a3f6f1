/** The demonstration's measurements: one document, read and asked about on one cache after another. */
import { fileURLToPath } from 'node:url';
import type { Engine } from '../../engine/engine.ts';
import type { Plan } from '../../plan/plan.ts';
import { createScore } from '../divergence.ts';
import { logSoftmax } from '../vocabulary.ts';
import { type Answer, openAsker, type Task } from './ask.ts';

/** The model in the package. */
export const mimirPath: string = fileURLToPath(new URL('../../../models/mimir.gguf', import.meta.url));

/** Of the document's last tokens predictions are compared. */
const SCORED = 1024;

export interface DemoRow {
  kv: string;
  /** Code bits a value, keys and values together. */
  bits: number;
  /** Of the cache, all in all, after the last question. */
  bytes: number;
  /** How many times as many bytes f16 has. */
  ratio: number;
  right: number;
  answers: Answer[];
  /** Tokens of the document a second. */
  readRate: number;
  /** Of an answer, after the first token. */
  msPerToken: number;
  /** Divergence to f16 over the document's last `scored` tokens, nats a token. */
  kld: number;
  scored: number;
}

export interface DemoEvents {
  signal?: AbortSignal;
  onRead?(plan: Plan, done: number): void;
  onAnswer?(plan: Plan, answer: Answer): void;
}

/** The first plan is what the others are compared with: f16. Stopped by the signal, it gives the rows that are whole. */
export async function* demonstrate(
  engine: Engine,
  plans: readonly Plan[],
  task: Task,
  { signal, onRead, onAnswer }: DemoEvents = {},
): AsyncGenerator<DemoRow, void, void> {
  const scored = Math.min(SCORED, Math.floor(task.shared / 2));
  const reference: Float32Array[] = [];
  let exactBytes: number | undefined;
  for (const plan of plans) {
    const asker = openAsker(engine, plan, task);
    try {
      const score = createScore(task.questions[0]!.prompt);
      const started = performance.now();
      const read = await asker.read({
        scored,
        signal,
        onProgress: done => onRead?.(plan, done),
        onLogits(position, logits) {
          const own = logSoftmax(logits);
          reference[position] ??= own;
          score.add(position, own, reference[position]);
        },
      });
      if (!read) return;
      const readRate = (1000 * task.shared) / (performance.now() - started);
      const answers: Answer[] = [];
      for (const question of task.questions) {
        const answer = await asker.ask(question, signal);
        if (!answer) return;
        answers.push(answer);
        onAnswer?.(plan, answer);
      }
      exactBytes ??= asker.bytes;
      yield {
        kv: plan.spec,
        bits: plan.bits,
        bytes: asker.bytes,
        ratio: exactBytes / asker.bytes,
        right: answers.filter(({ right }) => right).length,
        answers,
        readRate,
        msPerToken: sum(answers, ({ decodeMs }) => decodeMs) / sum(answers, ({ decoded }) => decoded),
        kld: score.kld / score.tokens,
        scored,
      };
    } finally {
      asker.dispose();
    }
  }
}

const sum = <T>(items: readonly T[], of: (item: T) => number): number =>
  items.reduce((total, item) => total + of(item), 0);
