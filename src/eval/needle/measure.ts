/** Measures how many planted facts a model retrieves, by cache format, document length and depth of the fact. */
import type { Engine } from '../../engine/engine.ts';
import type { Plan } from '../../plan/plan.ts';
import { InputError } from '../../util/errors.ts';
import { formatCount } from '../../util/units.ts';
import { evenDepths, readGrammar } from './document.ts';
import { createNeedleTask, type NeedleTask, openDocumentSession } from './questions.ts';

export interface NeedleOptions {
  plans: readonly Plan[];
  /** Lengths of the documents, in tokens. */
  lengths: readonly number[];
  /** Facts per document, at evenly spaced depths. */
  depths: number;
  /** Documents of each length. */
  documents: number;
  /** Seed of the first document; the next one has the next seed. */
  seed: number;
  signal?: AbortSignal;
  /** Called after each batch, with tokens done and in total. */
  onProgress?: (progress: { done: number; total: number }) => void;
}

/** The answers at one document length and depth. */
export interface NeedleCell {
  /** Tokens of the document. */
  length: number;
  /** 0 is the start of the document, 1 its end. */
  depth: number;
  /** Correct answers. */
  right: number;
  /** Questions asked. */
  asked: number;
}

/** The answers with one cache format. */
export interface NeedleRow {
  /** The spec. */
  kv: string;
  /** Code bits per value, averaged over keys and values. */
  bits: number;
  /** Correct answers. */
  right: number;
  /** Questions asked. */
  asked: number;
  /** By length, then depth. */
  cells: NeedleCell[];
}

/** If the signal aborts it, returns what was measured so far. */
export async function measureNeedle(engine: Engine, options: NeedleOptions): Promise<NeedleRow[]> {
  const { plans, lengths, documents, signal, onProgress } = options;
  const depths = evenDepths(options.depths);
  const grammar = await readGrammar();
  const tables = plans.map(() =>
    lengths.map(length => depths.map((depth): NeedleCell => ({ length, depth, right: 0, asked: 0 }))),
  );
  const total = documents * plans.length * lengths.reduce((sum, length) => sum + length, 0);
  let done = 0;

  // All caches finish a document before the next one, so that partial results can be compared.
  asking: for (let document = 0; document < documents; document++) {
    for (const [row, tokens] of lengths.entries()) {
      const task = createNeedleTask(engine, grammar, { seed: options.seed + document, tokens, depths }, plans);
      checkContext(engine, task);
      for (const [i, plan] of plans.entries()) {
        const finished = await askQuestions(engine, plan, task, {
          signal,
          onRead: fraction => onProgress?.({ done: done + Math.round(fraction * tokens), total }),
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
    return { kv: spec, bits, ...countAnswers(cells), cells };
  });
  return rows.filter(({ asked }) => asked > 0);
}

interface AskEvents {
  signal?: AbortSignal;
  /** With the fraction of the document that has been prefilled, 0 to 1. */
  onRead(fraction: number): void;
  onAnswer(question: number, right: boolean): void;
}

async function askQuestions(engine: Engine, plan: Plan, task: NeedleTask, events: AskEvents): Promise<boolean> {
  const { signal, onRead, onAnswer } = events;
  const session = openDocumentSession(engine, plan, task);
  try {
    if (!(await session.read({ signal, onProgress: rows => onRead(rows / task.shared) }))) return false;
    for (const [i, question] of task.questions.entries()) {
      const answer = await session.ask(question, signal);
      if (!answer) return false;
      onAnswer(i, answer.right);
    }
    return true;
  } finally {
    session.dispose();
  }
}

export function checkContext({ config }: Pick<Engine, 'config'>, { shared, context }: NeedleTask): void {
  if (context <= config.context) return;
  throw new InputError(
    `A document of ${formatCount(shared)} tokens with a question and an answer needs ${formatCount(context)} tokens; the model was ` +
      `trained for ${formatCount(config.context)}. Use shorter documents.`,
  );
}

export function countAnswers(cells: readonly NeedleCell[]): { right: number; asked: number } {
  return cells.reduce((sum, { right, asked }) => ({ right: sum.right + right, asked: sum.asked + asked }), {
    right: 0,
    asked: 0,
  });
}
