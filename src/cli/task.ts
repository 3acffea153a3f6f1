/** `kvasir eval --task gsm8k` and others: how well a model does a task with each codec. */

import { evaluateTask } from '../eval/tasks/evaluate-task.ts';
import { accuracyPlot, groupTable, NOTES, taskPage, taskTable } from '../eval/tasks/report.ts';
import type { TaskRow } from '../eval/tasks/summarize.ts';
import { type EvaluationFlags, evaluationOptions, writeFiles } from './needle.ts';
import { createProgress } from './progress.ts';
import { formatDevice } from './stats.ts';
import { formatPlural, formatTable, printResult } from './table.ts';

export interface TaskFlags extends EvaluationFlags {
  task: string;
  context?: number;
  data?: string;
  shots?: string;
  limit?: number;
  plain?: boolean;
  samples?: number;
  temperature?: number;
  seed?: number;
  think?: 'on' | 'off';
  maxTokens?: number;
  pageTokens?: number;
  lengths?: number[];
  documents?: number;
  results?: string;
  runCode?: boolean;
}

export async function runTask(name: string, flags: TaskFlags, signal: AbortSignal): Promise<void> {
  const { task, context, data, shots, limit, plain, samples, temperature, seed, think, maxTokens, pageTokens } = flags;
  const { lengths, documents, results, runCode } = flags;
  const { fast: _fast, ...shared } = await evaluationOptions(name, flags, signal);
  const progress = createProgress({ title: task, unit: 'items' });
  const { model, device, rows, notices } = await evaluateTask(name, {
    ...shared,
    ...{ task, context, data, shots, limit, samples, temperature, seed, maxTokens, pageTokens, lengths, documents },
    ...{ results, runCode, think: think === 'on' },
    chat: plain ? false : undefined,
    onProgress: ({ done, total }) => progress.update(done, total),
  }).finally(progress.end);
  for (const notice of notices) console.error(notice);
  if (signal.aborted) console.error(`stopped; ${results ? 'the same command continues. R' : 'r'}esults so far:`);
  const title = `${model}: ${task}`;
  const subtitle = [formatPlural(rows[0]?.items ?? 0, 'item'), formatDevice(device)].filter(Boolean).join('; ');
  const summary = rows.map(({ results: _results, ...row }) => row);
  printResult(flags.json, summary, () => render(rows, `${title}: ${subtitle}`));
  await writeFiles(
    flags.out,
    () => accuracyPlot(rows, { title, subtitle }),
    () => taskPage(rows, { title, subtitle }),
  );
}

function render(rows: readonly TaskRow[], heading: string): string {
  const table = taskTable(rows);
  const groups = groupTable(rows);
  return [
    heading,
    formatTable(table.header, table.lines),
    ...(groups ? ['', formatTable(groups.header, groups.lines)] : []),
    '',
    ...NOTES,
  ].join('\n');
}
