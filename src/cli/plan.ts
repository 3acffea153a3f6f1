/** `kvasir plan`: the codec of every layer, the cache size and the expected divergence. */
import type { Command } from 'commander';
import { codeBits } from '../codec/codec.ts';
import { openModelFile, planShape } from '../engine/engine.ts';
import { resolveProfile } from '../engine/profile.ts';
import { choosePlan } from '../plan/auto.ts';
import { maxTokensIn, type Plan, planBytes } from '../plan/plan.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../units.ts';
import { PROFILE_HELP, resolveProfileFlag } from './profile-flag.ts';
import { formatShort, formatTable } from './table.ts';

interface Options {
  kv: string;
  contextMemory?: number;
  context?: number;
  profile?: string;
  json?: boolean;
}

export function addPlan(program: Command): void {
  program
    .command('plan')
    .description('show the codec of every layer, the cache size and the expected divergence')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--kv <spec>', 'auto, auto:2.25 (bits per value), auto-tq:3.25, or any codec', 'auto')
    .option('--context-memory <size>', 'memory limit for the KV cache of a full context, e.g. 300MB', parseBytes)
    .option('--context <n>', "tokens, e.g. 32k (default: the model's context)", parseCount)
    .option('--profile <file>', PROFILE_HELP)
    .option('--json', 'print the plan as JSON')
    .addHelpText('after', '\nExample:\n  kvasir plan model.gguf --context 32k --context-memory 300MB')
    .action(showPlan);
}

async function showPlan(model: string, options: Options): Promise<void> {
  const file = await openModelFile(model);
  await file.gguf.close();
  const context = options.context ?? file.config.context;
  const { profile, notice } = await resolveProfile(
    file,
    [options.kv],
    await resolveProfileFlag(options.profile, model),
  );
  if (notice) console.error(notice);
  const plan = choosePlan(options.kv, planShape(file), profile, { contextMemory: options.contextMemory, context });
  const description = describePlan(plan, context, options.contextMemory);
  console.log(options.json ? JSON.stringify(description, null, 1) : render(description));
}

function describePlan(plan: Plan, context: number, budget?: number) {
  const layers = plan.codecs.map(({ keys, values }, layer) => ({
    layer,
    key: { spec: keys.spec, bits: codeBits(keys) },
    value: { spec: values.spec, bits: codeBits(values) },
  }));
  return {
    kv: plan.spec,
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

function render(description: ReturnType<typeof describePlan>): string {
  const { kv, bits, predicted, window, context, bytes, bytesPerToken, budget, tokensThatFit, notice, layers } =
    description;
  const side = ({ spec, bits }: { spec: string; bits: number }) => [spec, bits.toFixed(3)];
  return [
    `${kv}: ${bits.toFixed(3)} code bits per value; ${window.sink} sinks, ${window.recent} recent tokens and the unsealed page in f16`,
    formatTable(
      ['layer', 'keys', 'bits', 'values', 'bits'],
      layers.map(({ layer, key, value }) => [String(layer), ...side(key), ...side(value)]),
    ),
    '',
    `${formatBytes(bytes)} for ${formatCount(context)} tokens; ${formatBytes(bytesPerToken)} per further token`,
    ...(budget === undefined ? [] : [`${formatCount(tokensThatFit ?? 0)} tokens fit into ${formatBytes(budget)}`]),
    predicted === undefined
      ? 'The expected divergence is not known without a profile; `kvasir eval` measures it.'
      : `expected divergence from f16: ${formatShort(predicted)} nats per token`,
    ...(notice ? [notice] : []),
  ].join('\n');
}
