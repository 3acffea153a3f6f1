/** `kvasir eval`: what each codec costs a model's predictions, on a text of one's own. */
import { writeFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { formatOutliers } from '../cache/outliers.ts';
import { loadEngine, openModelFile, planShape } from '../engine/engine.ts';
import { profileFor } from '../engine/profile.ts';
import { InputError } from '../errors.ts';
import { type Breaker, createBreaker, tokenClass } from '../eval/breakdown.ts';
import { type DivergenceRow, JUDGED_AT_ONCE, measureDivergence } from '../eval/divergence.ts';
import { divergencePlot } from '../eval/plot.ts';
import { reportPage } from '../eval/report.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { choosePlan } from '../plan/auto.ts';
import { type Plan, planBytes, planOf } from '../plan/plan.ts';
import { formatCount, parseCount, parseCounts } from '../units.ts';
import { evaluateNeedle, type NeedleFlags } from './needle.ts';
import { createProgress } from './progress.ts';
import { addDeviceOptions, interruptible, parseNumber, parseSpecs } from './session.ts';
import { brief, table } from './table.ts';
import { readText } from './text.ts';

interface Options extends NeedleFlags {
  task: string;
  text?: string;
  special?: boolean;
  context: number;
  skip: number;
  chunks?: number | 'all';
  from: string;
}

export function addEval(program: Command): void {
  const command = program
    .command('eval')
    .description("measure what codecs do to a model's predictions, or to the facts that it finds again in long text")
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--task <name>', 'divergence (to f16; with top-1 and perplexity), or needle (planted facts)', 'divergence')
    .option('--text <file>', 'divergence: a text to predict, such as the validation set of WikiText-2')
    .option('--special', 'divergence: special tokens that are written out in the text are read as such')
    .option('--kv <specs>', 'codecs, with commas between', 'q8_0,q4_0,tq4,tq3,tq2')
    .option('--profile <file>', 'what `kvasir calibrate` made (default: the one of this model, if there is one)')
    .option('--context <n>', 'divergence: tokens a row', parseCount, 2048)
    .option('--skip <n>', 'divergence: rows to pass over', parseNumber, 0)
    .option('--chunks <n>', `divergence: rows to judge, or all (default: ${ROWS}, or what there is)`, parseChunks)
    .option('--from <n>', 'divergence: first position scored: half, or a number', 'half')
    .option('--lengths <list>', 'needle: lengths of documents in tokens', parseCounts, [1000, 2000, 4000, 6000])
    .option('--depths <n>', 'needle: facts a document, evenly deep in it', parseCount, 10)
    .option('--documents <n>', 'needle: documents of every length', parseCount, 4)
    .option('--seed <n>', 'needle: of the first document; the next has the next one', parseNumber, 1)
    .option('--batch <n>', 'tokens that go through the layers together', parseCount, 512);
  addDeviceOptions(command)
    .option('--fast', 'int8 activations and integer attention, as generation has them')
    .option('--json', 'rows as JSON')
    .option('--svg <file>', 'also draw divergence against bits, or what was found by length and depth')
    .option(
      '--report <file>',
      'also write a page: by codec, position, kind of token and layer, and the plans; or the maps',
    )
    .addHelpText('after', HELP)
    .action((model: string, options: Options) =>
      interruptible(signal => {
        if (options.task === 'needle') return evaluateNeedle(model, options, signal);
        if (options.task === 'divergence') return evaluateDivergence(model, options, signal);
        throw new InputError(`--task is divergence or needle, not "${options.task}".`);
      }),
    );
}

/** Divergence is a mean over tokens: a few thousand of them tell codecs apart, in minutes. */
const ROWS = 4;

const parseChunks = (text: string) => (text === 'all' ? text : parseCount(text));

const HELP = `
needle: facts are planted in made-up documents and asked for, one at a time, through the model's chat template, always
taking the likeliest token. An answer counts if it has the expected words in it; of Mimir, if it is these and no more.

Examples:
  kvasir eval model.gguf --text wiki.valid.txt --chunks 8 --kv tq4,tq3,kivi2g32
  kvasir eval model.gguf --task needle --lengths 1000,4000 --kv tq4,tq2 --svg map.svg`;

async function evaluateDivergence(name: string, options: Options, signal: AbortSignal): Promise<void> {
  const { context, skip, device, threads, memory } = options;
  if (options.text === undefined) throw new InputError('There is no text to predict. Give one: --text wiki.valid.txt');
  const specs = parseSpecs(options.kv);
  const from = options.from === 'half' ? Math.floor(context / 2) : parseNumber(options.from);
  const text = await readText(options.text, '--text');
  const file = await openModelFile(name);
  const { tokenizer, config } = file;
  const profile = await profileFor(file, specs, options.profile);
  const plans = specs.map(spec => choosePlan(spec, planShape(file), profile));
  const plan = planOf('f16', planShape(file));
  // All caches are there at once, and some of f16's predictions, which the others are compared with.
  const others = plans.reduce((sum, other) => sum + planBytes(other, context), 0);
  const extra = others + 4 * Math.min(JUDGED_AT_ONCE, context - from) * config.vocab;
  const loading = { device, threads, precise: !options.fast, memoryLimit: memory, prefillChunk: options.batch, signal };
  const engine = await loadEngine(file, { plan, context, extra }, loading);
  const breaking = options.report === undefined ? undefined : breakDown(from, context, tokenizer);
  const progress = createProgress({ title: 'eval', unit: 'tokens' });
  try {
    const ids = tokenizer.encode(text, { bos: tokenizer.addBos, special: options.special });
    const there = Math.floor(ids.length / context) - skip;
    const usual = there > ROWS ? ROWS : undefined;
    const chunks = options.chunks === 'all' ? undefined : (options.chunks ?? usual);
    if (options.chunks === undefined && usual)
      progress.note(`${ROWS} of the ${formatCount(there)} rows of this text are judged; --chunks takes more, or all.`);
    const rows = await measureDivergence(engine, ids, {
      plans,
      context,
      from,
      skip,
      chunks,
      signal,
      onProgress: ({ done, total }) => progress.update(done, total),
      onScored: breaking?.add,
    });
    progress.end();
    if (signal.aborted) console.error('stopped; this is what was measured until then:');
    const subtitle = `${formatCount(context)} tokens a row, scored from ${formatCount(from)} on; ${engine.why}`;
    console.log(options.json ? JSON.stringify(rows, null, 1) : render(rows, `${config.name}: ${subtitle}`));
    if (options.report && breaking) {
      const page = { title: config.name, subtitle, rows, breakdowns: breaking.result(), plans, profile };
      await writeFile(options.report, reportPage(page));
    }
    if (options.svg) await writeFile(options.svg, divergencePlot(rows, { title: config.name, subtitle }));
  } finally {
    progress.end();
    await engine.dispose();
  }
}

/** A breakdown of every plan's divergence. */
function breakDown(from: number, to: number, tokenizer: Tokenizer) {
  const classes = Array.from({ length: tokenizer.vocabSize }, (_, id) => tokenClass(tokenizer.tokenText(id)));
  const breakers = new Map<string, Breaker>();
  return {
    add({ spec }: Plan, position: number, next: number, kld: number) {
      const breaker = breakers.get(spec) ?? createBreaker(from, to, id => classes[id]);
      breakers.set(spec, breaker);
      breaker.add(position, next, kld);
    },
    result: () => new Map([...breakers].map(([spec, breaker]) => [spec, breaker.result()])),
  };
}

function render(rows: DivergenceRow[], heading: string): string {
  return [
    heading,
    table(
      ['cache', 'bits', 'divergence', 'top-1', 'perplexity', 'tokens'],
      rows.map(row => [
        row.kv,
        row.bits.toFixed(3),
        brief(row.kld),
        `${(100 * row.top1).toFixed(2)}%`,
        row.perplexity.toFixed(3),
        formatCount(row.tokens),
      ]),
    ),
    ...rows.flatMap(({ kv, outliers }) => (outliers ? ['', `${kv}: ${formatOutliers(outliers)}.`] : [])),
    '',
    'divergence: Kullback-Leibler, from the f16 cache of the same weights, nats a token. top-1: how often both would',
    'say the same next token.',
  ].join('\n');
}
