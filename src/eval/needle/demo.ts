/** The measurements of `kvasir demo`: one document and its questions, with one cache format after another. */
import { fileURLToPath } from 'node:url';
import type { Engine } from '../../engine/engine.ts';
import { logSoftmax } from '../../engine/log-probs.ts';
import type { Plan } from '../../plan/plan.ts';
import { createScore } from '../divergence.ts';
import { type NeedleTask, openDocumentSession, type QuestionAnswer } from './questions.ts';

/** The model that comes with the package. */
export const mimirPath: string = fileURLToPath(new URL('../../../models/mimir.gguf', import.meta.url));

/** Number of tokens at the end of the document whose predictions are compared. */
const SCORED = 1024;

export interface DemoRow {
  kv: string;
  /** Code bits per value, averaged over keys and values. */
  bits: number;
  /** Bytes of the whole cache after the last question. */
  bytes: number;
  /** Bytes of the f16 cache over these bytes. */
  ratio: number;
  right: number;
  answers: QuestionAnswer[];
  /** Prefill rate of the document, in tokens per second. */
  readRate: number;
  /** Milliseconds per decoded token, without the first. */
  msPerToken: number;
  /** KL divergence from f16 over the document's last `scored` tokens, in nats per token. */
  kld: number;
  scored: number;
}

export interface DemoEvents {
  signal?: AbortSignal;
  onRead?(plan: Plan, done: number): void;
  onAnswer?(plan: Plan, answer: QuestionAnswer): void;
}

/** The other plans are compared with the first, f16. If the signal aborts it, only finished rows are yielded. */
export async function* runDemo(
  engine: Engine,
  plans: readonly Plan[],
  task: NeedleTask,
  { signal, onRead, onAnswer }: DemoEvents = {},
): AsyncGenerator<DemoRow, void, void> {
  const scored = Math.min(SCORED, Math.floor(task.shared / 2));
  const reference: Float32Array[] = [];
  let exactBytes: number | undefined;
  for (const plan of plans) {
    const session = openDocumentSession(engine, plan, task);
    try {
      const score = createScore(task.questions[0]!.prompt);
      const started = performance.now();
      const read = await session.read({
        scored,
        signal,
        onProgress: done => onRead?.(plan, done),
        onLogits(position, logits) {
          const logProbs = logSoftmax(logits);
          reference[position] ??= logProbs;
          score.add(position, logProbs, reference[position]);
        },
      });
      if (!read) return;
      const readRate = (1000 * task.shared) / (performance.now() - started);
      const answers: QuestionAnswer[] = [];
      for (const question of task.questions) {
        const answer = await session.ask(question, signal);
        if (!answer) return;
        answers.push(answer);
        onAnswer?.(plan, answer);
      }
      exactBytes ??= session.bytes;
      yield {
        kv: plan.spec,
        bits: plan.bits,
        bytes: session.bytes,
        ratio: exactBytes / session.bytes,
        right: answers.filter(({ right }) => right).length,
        answers,
        readRate,
        msPerToken: sum(answers, ({ decodeMs }) => decodeMs) / sum(answers, ({ decoded }) => decoded),
        kld: score.kld / score.tokens,
        scored,
      };
    } finally {
      session.dispose();
    }
  }
}

const sum = <T>(items: readonly T[], of: (item: T) => number): number =>
  items.reduce((total, item) => total + of(item), 0);
