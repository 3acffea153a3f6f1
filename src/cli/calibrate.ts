/** `kvasir calibrate`: learns codec parameters from text and saves them as the model's profile. */

import { basename } from 'node:path';
import type { Command } from 'commander';
import {
  type CalibrateOptions,
  type CalibrationResult,
  type CalibrationStage,
  type CalibrationWork,
  calibrate,
} from '../calibrate/calibrate.ts';
import { AUTO, choosePlan } from '../plan/auto.ts';
import { DEFAULT_CODECS } from '../plan/default-codecs.ts';
import { planShapeOf } from '../plan/plan.ts';
import { formatCount, formatDuration, formatFileSize, parseCount } from '../util/units.ts';
import {
  addDeviceOptions,
  addModelArgument,
  type DeviceFlags,
  deviceOptions,
  parseList,
  parseNumber,
  runInterruptible,
} from './model-command.ts';
import { createPhaseBars, type ProgressOptions } from './progress.ts';
import { readTextFile } from './read-text.ts';
import { formatShort, printResult } from './table.ts';

interface Options
  extends DeviceFlags,
    Pick<CalibrateOptions, 'tokens' | 'context' | 'samples' | 'probeTokens' | 'seed' | 'out'> {
  text?: string[];
  onlyText?: boolean;
  special?: boolean;
  kv?: string[];
  json?: boolean;
}

/** The progress bar of each stage. Hashing takes seconds: no line in a log. */
const STAGE_BARS: Record<CalibrationStage, ProgressOptions> = {
  hashing: { title: 'hashing', unit: 'B', quiet: !process.stderr.isTTY },
  reading: { title: '1 reading', unit: 'rows' },
  learning: { title: '2 learning', unit: 'sides' },
  probing: { title: '3 probing', unit: 'steps' },
};

export function addCalibrate(program: Command): void {
  const command = program
    .command('calibrate')
    .description('learn codec parameters for a model from text and save them as its profile');
  addModelArgument(command)
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
      '--kv <specs>',
      `codecs to learn for, added to the profile, comma-separated (default: ${DEFAULT_CODECS.join()})`,
      parseList,
    )
    .option('--out <file>', 'write the profile to this file (default: the profile folder)');
  addDeviceOptions(command)
    .option('--json', 'print the result as JSON')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir calibrate model.gguf\n  kvasir calibrate model.gguf --text notes.md mails.txt\n' +
        '  kvasir calibrate model.gguf --kv vec-d8b12',
    )
    .action((model: string, options: Options) => runInterruptible(signal => run(model, options, signal)));
}

async function run(model: string, options: Options, signal: AbortSignal): Promise<void> {
  const { text = [], tokens, context, samples, probeTokens, seed, out } = options;
  const texts = text.map(async path => ({ name: basename(path), text: await readTextFile(path, '--text') }));
  const bars = createPhaseBars((stage: CalibrationStage) => STAGE_BARS[stage]);
  const result = await calibrate(model, {
    ...{ tokens, context, samples, probeTokens, seed, out, signal },
    ...deviceOptions(options),
    texts: await Promise.all(texts),
    onlyTexts: options.onlyText,
    codecs: options.kv,
    parseSpecialTokens: options.special,
    onStart(work) {
      bars.end();
      console.error(describeWork(work));
    },
    onProgress: ({ stage, done, total }) => bars.update(stage, done, total),
  }).finally(bars.end);
  if (!result) console.error('stopped; progress is saved. Run the same command again to continue.');
  else printResult(options.json, summarize(result), () => render(result));
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

function summarize(result: CalibrationResult) {
  const { path, bytes, profile } = result;
  const { hash, fingerprint, shape, provenance, sensitivities } = profile;
  return {
    ...{ path, bytes, hash, fingerprint, layers: shape.layers, provenance, sensitivities },
    topPairs: topPairShare(result),
    plan: describePlan(result),
  };
}

/** RoPE pairs that TriAttention keeps by default. */
const TOP_PAIRS = 12;

/** The share of the keys' energy in their largest pairs, averaged over layers; undefined if not measured. */
function topPairShare({ profile: { learned } }: CalibrationResult): number | undefined {
  const shares = learned.flatMap(({ key }) => key['tri.shares']?.[TOP_PAIRS - 1] ?? []);
  return shares.length > 0 ? shares.reduce((a, b) => a + b) / shares.length : undefined;
}

/** The plan of two bits per value; undefined if no sensitivities were measured. */
function describePlan({ profile }: CalibrationResult) {
  if (Object.keys(profile.sensitivities).length === 0) return undefined;
  const { spec, predicted } = choosePlan({ ...AUTO, bits: 2 }, planShapeOf(profile.shape), profile);
  return { kv: spec, predicted };
}

function render(result: CalibrationResult): string {
  const { path, bytes, profile } = result;
  const { provenance } = profile;
  const plan = describePlan(result);
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
      ? '`kvasir run MODEL` uses it from now on; `kvasir inspect MODEL` compares the presets.'
      : `The profile is found automatically: kvasir run MODEL --kv ${provenance.codecs[0]}`,
  ].join('\n');
}
