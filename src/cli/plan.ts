/** `kvasir plan`: the presets of a model, or the codec of every layer, with cache size and expected divergence. */
import type { Command } from 'commander';
import { resolvePlan } from '../api/resolve-plan.ts';
import { codeBits } from '../codec/codec.ts';
import { type ModelFile, openModelFile, planShape } from '../engine/engine.ts';
import { resolveProfile } from '../engine/profile.ts';
import { AUTO } from '../plan/auto.ts';
import { maxTokensIn, type Plan, type Preset, planBytes, presets } from '../plan/plan.ts';
import { checkCacheChoice, choosePreset } from '../plan/presets.ts';
import { measuredDivergence, type Profile } from '../plan/profile.ts';
import { platform } from '../platform/node.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../util/units.ts';
import { addCacheOptions } from './cache-choice.ts';
import { PROFILE_HELP, resolveProfileFlag } from './profile-flag.ts';
import { formatShort, formatTable } from './table.ts';

interface Options {
  kv?: string;
  quality?: Preset;
  contextMemory?: number;
  context?: number;
  memory?: number;
  profile?: string;
  json?: boolean;
}

const NO_PROFILE = 'not known without a profile: kvasir calibrate MODEL';

export function addPlan(program: Command): void {
  const command = program
    .command('plan')
    .description('compare the presets, or show the codec of every layer; with cache size and expected divergence')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`');
  addCacheOptions(command)
    .option('--context <n>', "tokens, e.g. 32k (default: the model's context)", parseCount)
    .option('--memory <size>', 'memory for weights and cache, e.g. 4GiB (default: the free memory)', parseBytes)
    .option('--profile <file>', PROFILE_HELP)
    .option('--json', 'print as JSON')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir plan model.gguf\n  kvasir plan model.gguf --quality small\n' +
        '  kvasir plan model.gguf --context 32k --context-memory 300MB',
    )
    .action(showPlan);
}

async function showPlan(model: string, options: Options): Promise<void> {
  checkCacheChoice(options);
  const { kv, quality, contextMemory, json } = options;
  const file = await openModelFile(model);
  await file.gguf.close();
  const context = options.context ?? file.config.context;
  // Searched for any codec: it tells what to expect.
  const given = await resolveProfileFlag(options.profile, model);
  const { profile, notice } = await resolveProfile(file, [AUTO], given);
  if (notice) console.error(notice);
  if (kv === undefined && quality === undefined && contextMemory === undefined) {
    const comparison = comparePresets(file, context, options.memory ?? platform.memoryLimit(), profile);
    console.log(json ? JSON.stringify(comparison, null, 1) : renderPresets(comparison));
    return;
  }
  const { plan } = await resolvePlan(file, { kv, quality, contextMemory, context, profile });
  const description = describePlan(plan, context, contextMemory);
  console.log(json ? JSON.stringify(description, null, 1) : render(description, expectationOf(plan, profile)));
}

function comparePresets(file: ModelFile, context: number, memory: number, profile?: Profile) {
  let weights = 0;
  for (const { bytes } of file.gguf.tensors.values()) weights += bytes;
  const room = Math.max(0, memory - weights);
  return {
    model: file.config.name,
    context,
    room,
    hasProfile: profile !== undefined,
    presets: presets.map(preset => {
      const plan = choosePreset(preset, planShape(file), profile);
      const { spec: kv, bits, predicted, notice } = plan;
      return {
        preset,
        kv,
        bits,
        bytes: planBytes(plan, context),
        maxTokens: maxTokensIn(plan, room),
        predicted,
        notice,
      };
    }),
  };
}

function renderPresets({ model, context, room, hasProfile, presets }: ReturnType<typeof comparePresets>): string {
  const unknown = hasProfile ? 'not in the profile' : 'not known';
  return [
    `${model}: the KV cache of one sequence of ${formatCount(context)} tokens`,
    formatTable(
      ['preset', 'cache', 'bits per value', 'bytes', 'max tokens', 'expected divergence'],
      presets.map(({ preset, kv, bits, bytes, maxTokens, predicted }) => [
        preset,
        kv,
        bits.toFixed(3),
        formatBytes(bytes),
        formatCount(maxTokens),
        predicted === undefined ? unknown : formatShort(predicted),
      ]),
    ),
    '',
    `max tokens: of one sequence in ${formatBytes(room)}, the memory beside the weights.`,
    hasProfile
      ? 'expected divergence: Kullback-Leibler from f16 in nats per token, on text like the calibration text.'
      : `The expected divergence is ${NO_PROFILE}`,
    'balanced is the default; --quality chooses another, here with its layers.',
    ...new Set(presets.flatMap(({ notice }) => notice ?? [])),
  ].join('\n');
}

function describePlan(plan: Plan, context: number, budget?: number) {
  const layers = plan.codecs.map(({ keys, values }, layer) => ({
    layer,
    key: { spec: keys.spec, bits: codeBits(keys) },
    value: { spec: values.spec, bits: codeBits(values) },
  }));
  return {
    kv: plan.spec,
    preset: plan.preset,
    bits: plan.bits,
    predicted: plan.predicted,
    window: plan.window,
    pageTokens: plan.pageTokens,
    context,
    bytes: planBytes(plan, context),
    bytesPerToken: plan.leaf.bytes / plan.pageTokens,
    budget,
    tokensThatFit: budget === undefined ? undefined : maxTokensIn(plan, budget),
    notice: plan.notice,
    layers,
  };
}

function expectationOf({ spec, predicted }: Plan, profile?: Profile): string {
  if (!profile) return `The expected divergence is ${NO_PROFILE}`;
  if (predicted === undefined) return `This profile has no measurement of ${spec}; \`kvasir eval\` measures it.`;
  const isMeasured = measuredDivergence(profile, spec) !== undefined;
  return (
    `expected divergence from f16: ${formatShort(predicted)} nats per token, ` +
    (isMeasured ? 'measured by calibration on text that was held out' : "predicted from the layers' sensitivities")
  );
}

function render(description: ReturnType<typeof describePlan>, expectation: string): string {
  const { kv, preset, bits, window, context, bytes, bytesPerToken, budget, tokensThatFit, notice, layers } =
    description;
  const side = ({ spec, bits }: { spec: string; bits: number }) => [spec, bits.toFixed(3)];
  return [
    `${preset ? `${preset}: ` : ''}${kv}: ${bits.toFixed(3)} code bits per value; ${window.sink} sinks, ${window.recent} recent tokens and the unsealed page in f16`,
    formatTable(
      ['layer', 'keys', 'bits', 'values', 'bits'],
      layers.map(({ layer, key, value }) => [String(layer), ...side(key), ...side(value)]),
    ),
    '',
    `${formatBytes(bytes)} for ${formatCount(context)} tokens; ${formatBytes(bytesPerToken)} per further token`,
    ...(budget === undefined ? [] : [`${formatCount(tokensThatFit ?? 0)} tokens fit into ${formatBytes(budget)}`]),
    expectation,
    ...(notice ? [notice] : []),
  ].join('\n');
}
