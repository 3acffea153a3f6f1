/** How many planted facts a model finds again, by length of the document, depth of the fact, and cache. */
import type { Engine } from '../../engine/engine.ts';
import { InputError } from '../../errors.ts';
import type { Plan } from '../../plan/plan.ts';
import { formatCount } from '../../units.ts';
import { makeTask, openAsker, type Task } from './ask.ts';
import { evenDepths, readGrammar } from './document.ts';

export interface NeedleOptions {
  plans: readonly Plan[];
  /** Of documents, in tokens. */
  lengths: readonly number[];
  /** Facts a document, each in the middle of an equal part of it. */
  depths: number;
  /** Of every length. */
  documents: number;
  /** Of the first document; the next has the next one. */
  seed: number;
  signal?: AbortSignal;
  /** Tokens read, of all that will be. */
  onProgress?: (progress: { done: number; total: number }) => void;
}

export interface NeedleCell {
  length: number;
  /** 0 is the beginning of the document, 1 its end. */
  depth: number;
  right: number;
  asked: number;
}

export interface NeedleRow {
  kv: string;
  /** Code bits a value, keys and values together. */
  bits: number;
  right: number;
  asked: number;
  /** Lengths, and in each the depths. */
  cells: NeedleCell[];
}

/** Stopped by the signal, it gives what was measured until then. */
export async function measureNeedle(engine: Engine, options: NeedleOptions): Promise<NeedleRow[]> {
  const { plans, lengths, documents, signal, onProgress } = options;
  const depths = evenDepths(options.depths);
  const grammar = await readGrammar();
  const tables = plans.map(() =>
    lengths.map(length => depths.map((depth): NeedleCell => ({ length, depth, right: 0, asked: 0 }))),
  );
  const total = documents * plans.length * lengths.reduce((sum, length) => sum + length, 0);
  let done = 0;

  // Every cache is asked about a document before the next is made: whatever the signal leaves can be compared.
  asking: for (let document = 0; document < documents; document++) {
    for (const [row, tokens] of lengths.entries()) {
      const task = makeTask(engine, grammar, { seed: options.seed + document, tokens, depths }, plans);
      checkContext(engine, task);
      for (const [i, plan] of plans.entries()) {
        const finished = await askAll(engine, plan, task, {
          signal,
          onRead: share => onProgress?.({ done: done + Math.round(share * tokens), total }),
          onAnswer(column, right) {
            const cell = tables[i]![row]![column]!;
            cell.asked++;
            if (right) cell.right++;
          },
        });
        if (!finished) break asking;
        done += tokens;
        onProgress?.({ done, total });
      }
    }
  }
  const rows = plans.map(({ spec, bits }, i) => {
    const cells = tables[i]!.flat();
    return { kv: spec, bits, ...countOf(cells), cells };
  });
  return rows.filter(({ asked }) => asked > 0);
}

interface AskEvents {
  signal?: AbortSignal;
  /** Of the document, 0 to 1. */
  onRead(share: number): void;
  onAnswer(question: number, right: boolean): void;
}

async function askAll(engine: Engine, plan: Plan, task: Task, events: AskEvents): Promise<boolean> {
  const { signal, onRead, onAnswer } = events;
  const asker = openAsker(engine, plan, task);
  try {
    if (!(await asker.read({ signal, onProgress: rows => onRead(rows / task.shared) }))) return false;
    for (const [i, question] of task.questions.entries()) {
      const answer = await asker.ask(question, signal);
      if (!answer) return false;
      onAnswer(i, answer.right);
    }
    return true;
  } finally {
    asker.dispose();
  }
}

export function checkContext({ config }: Pick<Engine, 'config'>, { shared, context }: Task): void {
  if (context <= config.context) return;
  throw new InputError(
    `A document of ${formatCount(shared)} tokens, a question and an answer take ${formatCount(context)}; the model was ` +
      `made for ${formatCount(config.context)}. Take shorter documents.`,
  );
}

export function countOf(cells: readonly NeedleCell[]): { right: number; asked: number } {
  return cells.reduce((sum, { right, asked }) => ({ right: sum.right + right, asked: sum.asked + asked }), {
    right: 0,
    asked: 0,
  });
}
