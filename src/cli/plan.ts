/** `kvasir plan`: which codec every layer would have, what that takes, and what it should cost in text. */
import type { Command } from 'commander';
import { codeBits } from '../codec/codec.ts';
import { openModelFile, planShape } from '../engine/engine.ts';
import { profileFor } from '../engine/profile.ts';
import { choosePlan } from '../plan/auto.ts';
import { type Plan, planBytes } from '../plan/plan.ts';
import { formatBytes, formatCount, parseBytes, parseCount } from '../units.ts';
import { brief, table } from './table.ts';

interface Options {
  kv: string;
  kvMemory?: number;
  context?: number;
  profile?: string;
  json?: boolean;
}

export function addPlan(program: Command): void {
  program
    .command('plan')
    .description('show which codec every layer would have, its bytes, and the divergence to expect')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .option('--kv <spec>', 'auto, auto:2.25 (bits), auto-tq:3.25, or any codec', 'auto')
    .option('--kv-memory <size>', 'most memory of a whole context, e.g. 300MB', parseBytes)
    .option('--context <n>', "tokens, e.g. 32k (default: the model's own)", parseCount)
    .option('--profile <file>', 'what `kvasir calibrate` made (default: the one of this model, if there is one)')
    .option('--json', 'the plan as JSON')
    .addHelpText('after', '\nExample:\n  kvasir plan model.gguf --context 32k --kv-memory 300MB')
    .action(show);
}

async function show(model: string, options: Options): Promise<void> {
  const file = await openModelFile(model);
  await file.gguf.close();
  const context = options.context ?? file.config.context;
  const profile = await profileFor(file, [options.kv], options.profile);
  const plan = choosePlan(options.kv, planShape(file), profile, { kvMemory: options.kvMemory, context });
  const found = describe(plan, context, options.kvMemory);
  console.log(options.json ? JSON.stringify(found, null, 1) : render(found));
}

/** Tokens of one sequence that a budget holds, in whole pages. */
function tokensWithin(plan: Plan, budget: number): number {
  const room = budget - planBytes(plan, 1);
  return room < 0 ? 0 : Math.floor(room / plan.leaf.bytes) * plan.pageTokens + plan.window.recent + plan.pageTokens;
}

function describe(plan: Plan, context: number, budget?: number) {
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
    tokensThatFit: budget === undefined ? undefined : tokensWithin(plan, budget),
    notice: plan.notice,
    layers,
  };
}

function render(found: ReturnType<typeof describe>): string {
  const { kv, bits, predicted, window, context, bytes, bytesPerToken, budget, tokensThatFit, notice, layers } = found;
  const side = ({ spec, bits }: { spec: string; bits: number }) => [spec, bits.toFixed(3)];
  return [
    `${kv}: ${bits.toFixed(3)} code bits a value; ${window.sink} sinks, ${window.recent} recent tokens and the unfinished page in f16`,
    table(
      ['layer', 'keys', 'bits', 'values', 'bits'],
      layers.map(({ layer, key, value }) => [String(layer), ...side(key), ...side(value)]),
    ),
    '',
    `${formatBytes(bytes)} for ${formatCount(context)} tokens; ${formatBytes(bytesPerToken)} for each further one`,
    ...(budget === undefined ? [] : [`${formatCount(tokensThatFit ?? 0)} tokens fit into ${formatBytes(budget)}`]),
    predicted === undefined
      ? 'What this does to the text is not known without a profile: `kvasir eval` measures it.'
      : `expected divergence from f16: ${brief(predicted)} nats a token`,
    ...(notice ? [notice] : []),
  ].join('\n');
}
