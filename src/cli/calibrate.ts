/** `kvasir calibrate`: learns codec parameters from text and saves them as the model's profile. */

import { basename } from 'node:path';
import type { Command } from 'commander';
import {
  type CalibrationProgress,
  type CalibrationResult,
  type CalibrationStage,
  type CalibrationWork,
  calibrate,
} from '../calibrate/calibrate.ts';
import type { DeviceName } from '../kernel/open.ts';
import { AUTO, choosePlan } from '../plan/auto.ts';
import { DEFAULT_CODECS } from '../plan/default-codecs.ts';
import { formatCount, formatDuration, formatFileSize, parseCount } from '../util/units.ts';
import { addDeviceOptions, parseNumber, runInterruptible } from './model-command.ts';
import { createProgress, type Progress } from './progress.ts';
import { readTextFile } from './read-text.ts';
import { formatShort } from './table.ts';

interface Options {
  text?: string[];
  special?: boolean;
  onlyText?: boolean;
  tokens?: number;
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

/** Title and unit of each stage's progress bar. */
const STAGE_BARS: Record<CalibrationStage, [string, string]> = {
  reading: ['1 reading', 'rows'],
  learning: ['2 learning', 'sides'],
  probing: ['3 probing', 'steps'],
};

export function addCalibrate(program: Command): void {
  const command = program
    .command('calibrate')
    .description('learn codec parameters for a model from text and save them as its profile')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--text <files...>', 'text files to calibrate on, in addition to the built-in text of many kinds')
    .option('--only-text', 'calibrate on the text files alone')
    .option('--special', 'parse special tokens in the text files')
    .option(
      '--tokens <n>',
      'tokens of text (default: 65536, on a CPU fewer for large models; and as many more of --text)',
      parseCount,
    )
    .option('--context <n>', 'tokens per row (default: 1024)', parseCount)
    .option('--samples <n>', 'keys and values sampled per layer (default: up to 12288)', parseCount)
    .option('--probe-tokens <n>', 'tokens for measuring layer sensitivities; 0 skips it (default: 128)', parseNumber)
    .option('--seed <n>', 'random seed of the samples', parseNumber, 0)
    .option(
      '--codecs <specs>',
      `codecs to learn for, added to the profile, comma-separated (default: ${DEFAULT_CODECS.join()})`,
    )
    .option('--bits <n>', 'bits per value of the plan printed at the end', parseNumber, 2)
    .option('--out <file>', 'write the profile to this file (default: the profile folder)');
  addDeviceOptions(command)
    .option('--json', 'print the result as JSON')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir calibrate model.gguf\n  kvasir calibrate model.gguf --text notes.md mails.txt\n' +
        '  kvasir calibrate model.gguf --codecs vec-d8b12',
    )
    .action((model: string, options: Options) => runInterruptible(signal => run(model, options, signal)));
}

async function run(model: string, options: Options, signal: AbortSignal): Promise<void> {
  const { text, onlyText, memory, codecs, json, bits, special, ...rest } = options;
  const texts = text?.map(async path => ({ name: basename(path), text: await readTextFile(path, '--text') }));
  const bars = createStageBars();
  try {
    const result = await calibrate(model, {
      ...rest,
      texts: texts && (await Promise.all(texts)),
      onlyTexts: onlyText,
      codecs: codecs?.split(',').map(spec => spec.trim()),
      parseSpecialTokens: special,
      memoryLimit: memory,
      signal,
      onStart: work => console.error(describeWork(work)),
      onProgress: bars.update,
    });
    bars.end();
    if (!result) console.error('stopped; progress is saved. Run the same command again to continue.');
    else console.log(json ? JSON.stringify(summary(result, bits), null, 1) : render(result, bits));
  } finally {
    bars.end();
  }
}

function describeWork({ tokens, sources, context, codecs, layers, measures, seconds }: CalibrationWork): string {
  const stages = [
    `${formatCount(tokens)} tokens are read in rows of ${formatCount(context)}`,
    `${codecs.join(', ')} are trained on them`,
    ...(measures ? [`${layers} layers are probed`] : []),
  ];
  return (
    `${measures ? 'Three' : 'Two'} stages: ${stages.slice(0, -1).join(', ')}${measures ? ',' : ''} and ${stages.at(-1)}.\n` +
    `Text: ${sources.map(({ name, tokens }) => `${name} ${formatCount(tokens)}`).join(', ')}.\n` +
    `About ${formatDuration(seconds)} in total. Ctrl-C saves progress.`
  );
}

/** One progress bar per stage. */
function createStageBars() {
  let stage: CalibrationStage | undefined;
  let bar: Progress | undefined;
  return {
    update(now: CalibrationProgress) {
      if (now.stage !== stage) {
        bar?.end();
        const [title, unit] = STAGE_BARS[now.stage];
        bar = createProgress({ title, unit });
      }
      stage = now.stage;
      bar?.update(now.done, now.total);
    },
    end: () => bar?.end(),
  };
}

function summary(result: CalibrationResult, bits: number) {
  const { path, bytes, profile } = result;
  const { hash, fingerprint, shape, provenance, sensitivities } = profile;
  return {
    path,
    bytes,
    hash,
    fingerprint,
    layers: shape.layers,
    provenance,
    sensitivities,
    topPairs: topPairShare(result),
    plan: describePlan(result, bits),
  };
}

/** RoPE pairs that TriAttention keeps by default. */
const TOP_PAIRS = 12;

/** The share of the keys' energy in their largest pairs, averaged over layers; undefined if not measured. */
function topPairShare({ profile: { learned } }: CalibrationResult): number | undefined {
  const shares = learned.flatMap(({ key }) => key['tri.shares']?.[TOP_PAIRS - 1] ?? []);
  return shares.length > 0 ? shares.reduce((a, b) => a + b) / shares.length : undefined;
}

/** The plan for this number of bits; undefined if no sensitivities were measured. */
function describePlan({ profile }: CalibrationResult, bits: number) {
  if (Object.keys(profile.sensitivities).length === 0) return undefined;
  const shape = { ...profile.shape, ropeFrequencies: Float64Array.from(profile.shape.ropeFrequencies) };
  const { spec, predicted } = choosePlan({ ...AUTO, bits }, shape, profile);
  return { kv: spec, predicted };
}

function render(result: CalibrationResult, bits: number): string {
  const { path, bytes, profile } = result;
  const { provenance } = profile;
  const plan = describePlan(result, bits);
  const share = topPairShare(result);
  return [
    path,
    `${formatFileSize(bytes)}; learned from ${formatCount(provenance.tokens)} tokens for ${provenance.codecs.join(', ')}`,
    ...(plan?.predicted === undefined
      ? []
      : [`${plan.kv}: expected divergence ${formatShort(plan.predicted)} nats per token`]),
    ...(share === undefined
      ? []
      : [`the top ${TOP_PAIRS} RoPE pairs of a key carry ${(100 * share).toFixed(1)} % of its energy`]),
    plan
      ? '`kvasir run MODEL` uses it from now on; `kvasir plan MODEL` compares the presets.'
      : `The profile is found automatically: kvasir run MODEL --kv ${provenance.codecs[0]}`,
  ].join('\n');
}
