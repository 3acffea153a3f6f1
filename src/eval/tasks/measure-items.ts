/** Runs the items of a task with one cache format. */
import { type LoadOptions, loadModel } from '../../api/model.ts';
import { loadEngine, openModelFile } from '../../engine/engine.ts';
import type { ModelInput } from '../../model/input.ts';
import type { Plan } from '../../plan/plan.ts';
import { type AnswerOptions, answerQuestions } from './answer-questions.ts';
import type { ItemResult } from './results-file.ts';
import { choiceTokens, encodeChoice, scoreChoices } from './score-choices.ts';
import type { Choice, Question } from './task.ts';

export type TaskItem = Question | Choice;

/** How the model is loaded and run. */
export type LoadSettings = Pick<
  LoadOptions,
  | 'device'
  | 'threads'
  | 'memoryLimit'
  | 'prefillChunk'
  | 'precise'
  | 'batchInvariant'
  | 'context'
  | 'pageTokens'
  | 'profile'
>;

interface MeasureOptions extends Omit<AnswerOptions, 'onResult'> {
  load: LoadSettings;
  onResult(item: TaskItem, result: ItemResult, length: number): Promise<void>;
}

/** Where the items ran, and how fast. */
export interface MeasureInfo {
  device: string;
  tokensPerSecond: number;
}

/** If the signal aborts it, the items that were not finished have no result. */
export async function measureItems(
  model: ModelInput,
  plan: Plan,
  items: readonly TaskItem[],
  options: MeasureOptions,
): Promise<MeasureInfo | undefined> {
  if (items.length === 0 || options.signal?.aborted) return undefined;
  let tokens = 0;
  const counted: MeasureOptions = {
    ...options,
    async onResult(item, result, length) {
      tokens += result.tokens;
      await options.onResult(item, result, length);
    },
  };
  const choices = items.filter(item => 'endings' in item);
  const questions = items.filter(item => 'prompt' in item);
  const { device, ms } =
    choices.length > 0
      ? await measureChoices(model, plan, choices, counted)
      : await measureQuestions(model, plan, questions, counted);
  return { device, tokensPerSecond: (1000 * tokens) / ms };
}

async function measureQuestions(
  model: ModelInput,
  plan: Plan,
  questions: readonly Question[],
  options: MeasureOptions,
) {
  const loaded = await loadModel(model, { ...options.load, kv: plan.spec, signal: options.signal });
  try {
    const started = performance.now();
    await answerQuestions(loaded, questions, options);
    return { device: loaded.device.why, ms: performance.now() - started };
  } finally {
    await loaded.dispose();
  }
}

/** Log probabilities of given tokens are no part of the model's API: this runs the engine itself. */
async function measureChoices(model: ModelInput, plan: Plan, choices: readonly Choice[], options: MeasureOptions) {
  const { load, signal, onResult } = options;
  const file = await openModelFile(model, load);
  const items = choices.map(choice => encodeChoice(file, choice));
  const context = Math.max(...items.map(choiceTokens));
  const engine = await loadEngine(file, { plan, context, kvMemory: 'auto' }, { ...load, signal });
  const cache = engine.openCache(plan, { context, capacity: engine.kvMemory });
  try {
    const started = performance.now();
    await scoreChoices(engine, cache, items, { signal, onResult });
    return { device: engine.why, ms: performance.now() - started };
  } finally {
    cache.dispose();
    await engine.dispose();
  }
}
