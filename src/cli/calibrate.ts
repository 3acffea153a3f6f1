/** `kvasir calibrate`: learns from text what the calibrated codecs need of a model, and keeps it as its profile. */
import { availableParallelism } from 'node:os';
import type { Command } from 'commander';
import { type Calibrated, calibrate, type Stage, type Work } from '../calibrate/calibrate.ts';
import type { DeviceName } from '../kernel/open.ts';
import { choosePlan } from '../plan/auto.ts';
import { USUAL_CODECS } from '../plan/usual.ts';
import { formatCount, formatDuration, formatFileSize, parseCount } from '../units.ts';
import { createProgress, type Progress } from './progress.ts';
import { addDeviceOptions, interruptible, parseNumber } from './session.ts';
import { brief } from './table.ts';
import { readText } from './text.ts';
import { packageVersion } from './version.ts';

interface Options {
  text?: string[];
  special?: boolean;
  self?: boolean;
  tokens: number;
  context?: number;
  samples?: number;
  probeTokens?: number;
  bits: number;
  seed: number;
  codecs?: string;
  out?: string;
  device: DeviceName;
  threads?: number;
  memory?: number;
  json?: boolean;
}

/** Titles and units of the bars. */
const STAGES: Record<Stage, [string, string]> = {
  writing: ['1 writing text', 'tokens'],
  reading: ['2 reading', 'rows'],
  learning: ['3 learning', 'sides'],
  probing: ['4 probing', 'sides'],
};

export function addCalibrate(program: Command): void {
  const command = program
    .command('calibrate')
    .description('learn from text what calibrated codecs need of a model, and keep it as its profile')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--text <files...>', 'texts to learn from; without any the model writes its own')
    .option('--special', 'special tokens that are written out in the texts are read as such')
    .option('--self', 'let the model write the text; beside --text, half of it')
    .option('--tokens <n>', 'how much text', parseCount, 65536)
    .option('--context <n>', 'tokens a row (default: 2048)', parseCount)
    .option('--samples <n>', 'keys and values kept of every layer (default: 16384)', parseCount)
    .option('--probe-tokens <n>', 'tokens by which layers are weighed; 0 for none (default: 256)', parseNumber)
    .option('--seed <n>', 'of the samples, and of the text that the model writes', parseNumber, 0)
    .option('--codecs <specs>', `what is learned for, with commas between (default: ${USUAL_CODECS.join()})`)
    .option('--bits <n>', 'bits a value of the plan that is shown in the end', parseNumber, 2)
    .option('--out <file>', 'write the profile here (default: where it is found by itself)');
  addDeviceOptions(command)
    .option('--json', 'the result as JSON')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir calibrate model.gguf\n  kvasir calibrate model.gguf --text wiki.train.txt code.txt --self',
    )
    .action((model: string, options: Options) => interruptible(signal => run(model, options, signal)));
}

async function run(model: string, options: Options, signal: AbortSignal): Promise<void> {
  const { text, memory, codecs, json, bits, ...rest } = options;
  if (!text && !rest.self)
    console.error('The model writes the text that it is calibrated by. --text takes files: best what it will read.');
  const texts = text && (await Promise.all(text.map(path => readText(path, '--text'))));
  const bars = stageBars();
  try {
    const result = await calibrate(model, {
      ...rest,
      texts,
      codecs: codecs?.split(',').map(spec => spec.trim()),
      memoryLimit: memory,
      version: packageVersion,
      workers: availableParallelism(),
      signal,
      onStart: work => console.error(announce(work)),
      onProgress: bars.update,
    });
    bars.end();
    if (!result) console.error('stopped; what is done is kept. The same command goes on from there.');
    else console.log(json ? JSON.stringify(summary(result, bits), null, 1) : render(result, bits));
  } finally {
    bars.end();
  }
}

function announce({ tokens, written, context, codecs, layers, seconds }: Work): string {
  const writes = written > 0 ? `the model writes ${formatCount(written)} tokens, ` : '';
  return (
    `${written > 0 ? 'Four' : 'Three'} stages: ${writes}${formatCount(tokens)} are read in rows of ${formatCount(context)}, ${codecs.join(', ')} learn ` +
    `from them, and ${layers} layers are probed.\nAbout ${formatDuration(seconds)} in all. Ctrl-C keeps what is done.`
  );
}

/** One bar a stage. */
function stageBars() {
  let stage: Stage | undefined;
  let bar: Progress | undefined;
  return {
    update(now: Stage, done: number, total: number) {
      if (now !== stage) {
        bar?.end();
        const [title, unit] = STAGES[now];
        bar = createProgress({ title, unit });
      }
      stage = now;
      bar?.update(done, total);
    },
    end: () => bar?.end(),
  };
}

function summary(result: Calibrated, bits: number) {
  const { path, bytes, hash, content } = result;
  const { fingerprint, shape, made, sensitivities } = content;
  return {
    path,
    bytes,
    hash,
    fingerprint,
    layers: shape.layers,
    made,
    sensitivities,
    topPairs: topPairs(result),
    plan: planned(result, bits),
  };
}

/** Pairs of RoPE that TriAttention usually keeps. */
const TOP_PAIRS = 12;

/** The share of the keys' energy that the largest pairs carry, over all layers; undefined if it was not measured. */
function topPairs({ content: { learned } }: Calibrated): number | undefined {
  const shares = learned.flatMap(({ key }) => key['tri.shares']?.[TOP_PAIRS - 1] ?? []);
  return shares.length > 0 ? shares.reduce((a, b) => a + b) / shares.length : undefined;
}

/** What a plan of so many bits would be; none where layers were not weighed. */
function planned({ content, hash }: Calibrated, bits: number) {
  if (Object.keys(content.sensitivities).length === 0) return undefined;
  const shape = { ...content.shape, turn: Float64Array.from(content.shape.turn) };
  const { spec, predicted } = choosePlan(`auto:${bits}`, shape, { ...content, hash });
  return { kv: spec, predicted };
}

function render(result: Calibrated, bits: number): string {
  const { path, bytes, content } = result;
  const { made } = content;
  const plan = planned(result, bits);
  const share = topPairs(result);
  return [
    path,
    `${formatFileSize(bytes)}; learned from ${formatCount(made.tokens)} tokens for ${made.codecs.join(', ')}`,
    ...(plan?.predicted === undefined
      ? []
      : [`${plan.kv}: a divergence of ${brief(plan.predicted)} nats is to be expected`]),
    ...(share === undefined
      ? []
      : [`the top ${TOP_PAIRS} pairs of a key carry ${(100 * share).toFixed(1)} % of its energy`]),
    `It is used by itself where a codec needs it: kvasir run MODEL --kv ${plan ? `auto:${bits}` : made.codecs[0]}`,
  ].join('\n');
}
