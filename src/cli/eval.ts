/** `kvasir eval`: how much each codec changes a model's predictions on a given text, or what it does on a task. */
import { basename } from 'node:path';
import type { Command } from 'commander';
import { formatOutliers } from '../cache/outliers.ts';
import type { DivergenceRow } from '../eval/divergence.ts';
import { DEFAULT_ROWS, evaluate } from '../eval/evaluate.ts';
import { divergencePlot } from '../eval/plot.ts';
import { reportPage } from '../eval/report.ts';
import { isChoiceTask, isGenerated, taskNames } from '../eval/tasks/create-task.ts';
import { InputError } from '../util/errors.ts';
import { formatCount, parseCount, parseCounts } from '../util/units.ts';
import { flagName } from './flag-names.ts';
import {
  addDeviceOptions,
  addModelArgument,
  parseChoice,
  parseNumber,
  parseSpecList,
  runInterruptible,
} from './model-command.ts';
import { checkFiles, evaluationOptions, type NeedleFlags, runNeedle, writeFiles } from './needle.ts';
import { PROFILE_HELP } from './profile-flag.ts';
import { createProgress } from './progress.ts';
import { readTextFile } from './read-text.ts';
import { formatDevice } from './stats.ts';
import { formatShort, formatTable, printResult } from './table.ts';
import { runTask, type TaskFlags } from './task.ts';

interface Options extends NeedleFlags, TaskFlags {
  text?: string;
  special?: boolean;
  skip: number;
  chunks?: number | 'all';
  from: string;
}

/** The flags of one kind of task; the others apply to all. */
const FLAGS_OF = {
  divergence: ['text', 'special', 'context', 'skip', 'chunks', 'from', 'fast'],
  needle: ['lengths', 'depths', 'documents', 'seed', 'fast'],
  ruler: [
    ...['context', 'lengths', 'documents', 'seed', 'limit', 'plain', 'samples', 'temperature', 'maxTokens'],
    ...['think', 'pageTokens', 'results'],
  ],
  choice: ['data', 'shots', 'limit', 'pageTokens', 'results'],
  questions: [
    ...['context', 'data', 'shots', 'seed', 'limit', 'plain', 'samples', 'temperature', 'maxTokens'],
    ...['think', 'pageTokens', 'results', 'runCode'],
  ],
};

function kindOf(task: string): keyof typeof FLAGS_OF {
  if (task === 'divergence' || task === 'needle') return task;
  if (isGenerated(task)) return 'ruler';
  return isChoiceTask(task) ? 'choice' : 'questions';
}

/** No flag is ignored in silence. */
function checkFlags(task: string, command: Command): void {
  const kind = kindOf(task);
  const ofOthers = new Set(Object.values(FLAGS_OF).flat());
  for (const flag of command.options.map(option => option.attributeName())) {
    if (!ofOthers.has(flag) || FLAGS_OF[kind].includes(flag)) continue;
    if (command.getOptionValueSource(flag) === 'cli')
      throw new InputError(
        `${flagName(flag)} does not apply to the task ${task}. \`kvasir help eval\` lists what does.`,
      );
  }
}

export function addEval(program: Command): void {
  const command = program
    .command('eval')
    .description("measure how codecs change a model's predictions, its answers to tasks, or which facts it retrieves");
  addModelArgument(command)
    .option(
      '--task <name>',
      `divergence (from f16; with top-1 and perplexity), needle (planted facts), ${taskNames.join(', ')}`,
      parseChoice(['divergence', 'needle', ...taskNames], 'a task'),
      'divergence',
    )
    .option('--text <file>', 'divergence: text file to predict, such as the validation set of WikiText-2')
    .option('--special', 'divergence: parse special tokens in the text')
    .option(
      '--kv <specs>',
      'codecs, comma-separated; f16 is always included (default: the presets safe, balanced, small)',
      parseSpecList,
    )
    .option('--profile <file>', PROFILE_HELP)
    .option(
      '--context <n>',
      "divergence: tokens per row (default: 2048); tasks: maximum tokens (default: the model's, up to 32k)",
      parseCount,
    )
    .option('--skip <n>', 'divergence: rows to skip', parseNumber, 0)
    .option('--chunks <n>', `divergence: rows to score, or all (default: ${DEFAULT_ROWS})`, parseChunks)
    .option('--from <n>', 'divergence: first scored position of a row: half, or a number', 'half')
    .option('--lengths <list>', 'needle, ruler: document lengths in tokens, e.g. 4k,16k', parseCounts)
    .option('--depths <n>', 'needle: facts per document, at evenly spaced depths (default: 10)', parseCount)
    .option('--documents <n>', 'needle, ruler: documents per length', parseCount)
    .option(
      '--seed <n>',
      'needle, tasks: random seed of the first document or answer; the next one uses the next seed',
      parseNumber,
    )
    .option('--data <file>', "tasks: the data set's file, in its own format")
    .option(
      '--shots <file>',
      'gsm8k, math, choice: worked examples in the same format; all of the file come before each question',
    )
    .option('--limit <n>', 'tasks: items to evaluate, from the first', parseCount)
    .option('--plain', 'tasks: ask without the chat template')
    .option('--samples <n>', 'tasks: answers per question; their mean counts', parseCount)
    .option('--temperature <t>', 'tasks: default 0, or .7 with several samples', parseNumber)
    .option(
      '--think <on|off>',
      'tasks: let models think that can, with room for it in answers (default: off)',
      parseChoice(['on', 'off'], 'on or off'),
    )
    .option('--max-tokens <n>', 'tasks: maximum tokens per answer (default: enough for the task)', parseCount)
    .option('--page-tokens <n>', 'tasks: tokens per page; text shorter than a page is not packed', parseCount)
    .option('--results <file>', 'tasks: keep finished items in this file; the same command continues after a stop')
    .option('--run-code', 'humaneval: run the programs that the model writes, on this machine')
    .option('--batch <n>', 'tokens per forward pass', parseCount, 512);
  addDeviceOptions(command)
    .option('--fast', 'divergence, needle: use int8 activations and integer attention, like generation does')
    .option('--json', 'print rows as JSON')
    .option(
      '--out <file>',
      'also write a plot (.svg) or a report (.html): divergence by codec, position, token class and layer, and the plans; ' +
        'or the heatmaps of needle, or the accuracy of a task; may be repeated',
      appendFile,
    )
    .addHelpText('after', HELP)
    .action((model: string, options: Options, command: Command) => {
      checkFlags(options.task, command);
      return runInterruptible(async signal => {
        await checkFiles(options.out);
        await (commands[options.task] ?? runTask)(model, options, signal);
      });
    });
}

function appendFile(path: string, previous: string[] = []): string[] {
  if (/\.(svg|html)$/.test(path)) return [...previous, path];
  throw new InputError(`"${path}" is neither a plot nor a report. Use a name that ends in .svg or .html.`);
}

const DEFAULT_CONTEXT = 2048;

const parseChunks = (text: string) => (text === 'all' ? text : parseCount(text));

const HELP = `
needle: facts are planted in generated documents, and the model answers one question about each, with its chat template
and greedy decoding. An answer counts if it contains the expected words; with Mimir, only if it equals them.

Other tasks ask the questions of a data set, as many at once as the model runs, and compare each codec with f16 on the same
questions. ruler-... writes its own documents.

Examples:
  kvasir eval model.gguf --text wiki.valid.txt --chunks 8 --kv tq4,tq3,kivi2g32
  kvasir eval model.gguf --task needle --lengths 1000,4000 --kv tq4,tq2 --out map.svg
  kvasir eval model.gguf --task gsm8k --data test.jsonl --shots shots.jsonl --kv tq4,mead2 --limit 200 --results run.jsonl
  kvasir eval model.gguf --task ruler-multi-key --lengths 4k,16k --kv tq4`;

const commands: Partial<Record<string, typeof evaluateDivergence>> = {
  divergence: evaluateDivergence,
  needle: runNeedle,
};

async function evaluateDivergence(name: string, options: Options, signal: AbortSignal): Promise<void> {
  const { context = DEFAULT_CONTEXT, skip, chunks } = options;
  if (options.text === undefined) throw new InputError('No text was given. Example: --text wiki.valid.txt');
  const from = options.from === 'half' ? Math.floor(context / 2) : parseNumber(options.from);
  const text = await readTextFile(options.text, '--text');
  const progress = createProgress({ title: 'eval', unit: 'tokens' });
  const evaluation = await evaluate(name, {
    ...(await evaluationOptions(name, options, signal)),
    ...{ text, context, from, skipRows: skip, rows: chunks },
    parseSpecialTokens: options.special,
    breakdown: options.out?.some(path => path.endsWith('.html')),
    onStart({ rows, availableRows }) {
      if (chunks === undefined && rows < availableRows)
        progress.note(
          `${rows} of the ${formatCount(availableRows)} rows of this text are scored; --chunks N or --chunks all scores more.`,
        );
    },
    onProgress: ({ done, total }) => progress.update(done, total),
  }).finally(progress.end);
  const { model, device, rows, breakdowns = new Map(), plans, profile, notices } = evaluation;
  for (const notice of notices) console.error(notice);
  if (signal.aborted) console.error('stopped; results so far:');
  const subtitle = `${formatCount(context)} tokens per row, scored from position ${formatCount(from)}; ${formatDevice(device)}`;
  printResult(options.json, rows, () => render(rows, `${model}: ${subtitle}`));
  // Names in metadata are often shared by all quantizations of a model; the file's name is not.
  const title = basename(name);
  await writeFiles(
    options.out,
    () => divergencePlot(rows, { title, subtitle }),
    () => reportPage({ title, subtitle, rows, breakdowns, plans, profile }),
  );
}

function render(rows: DivergenceRow[], heading: string): string {
  const hasRatios = rows.some(({ errorRatio }) => errorRatio !== undefined);
  return [
    heading,
    formatTable(
      ['cache', 'bits', 'divergence', 'top-1', 'perplexity', 'tokens', ...(hasRatios ? ['error ratio'] : [])],
      rows.map(row => [
        row.kv,
        row.bits.toFixed(3),
        formatShort(row.kld),
        `${(100 * row.top1).toFixed(2)}%`,
        row.perplexity.toFixed(3),
        formatCount(row.tokens),
        ...(hasRatios ? [row.errorRatio?.toFixed(2) ?? ''] : []),
      ]),
    ),
    ...rows.flatMap(({ kv, outliers }) => (outliers ? ['', `${kv}: ${formatOutliers(outliers)}.`] : [])),
    '',
    'divergence: Kullback-Leibler from an f16 cache with the same weights, in nats per token. top-1: how often the most',
    'likely next token is the same.',
    ...(hasRatios
      ? ["error ratio: the cache's squared error relative to the calibration text; 1 on text like it."]
      : []),
  ].join('\n');
}
