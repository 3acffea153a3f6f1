/** `kvasir inspect MODEL --kv SPEC`: the codec of every layer, with cache size and expected divergence. */
import { resolvePlan } from '../api/resolve-plan.ts';
import { codeBits } from '../codec/codec.ts';
import { maxTokensIn, type Plan, planBytes } from '../plan/plan.ts';
import { type CacheChoice, checkCacheChoice } from '../plan/presets.ts';
import { measuredDivergence, type Profile } from '../plan/profile.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import { openInspectedFile } from './inspect-file.ts';
import { findModelProfile } from './profile-flag.ts';
import { formatShort, formatTable, printResult } from './table.ts';

interface Flags extends CacheChoice {
  context?: number;
  profile?: string;
  json?: boolean;
}

export const NO_PROFILE = 'not known without a profile: kvasir calibrate MODEL';

export async function showLayers(model: string, { json, ...choice }: Flags): Promise<void> {
  checkCacheChoice(choice);
  const file = await openInspectedFile(model);
  await file.gguf.close();
  const context = choice.context ?? file.config.context;
  const { profile } = await findModelProfile(file, model, choice.profile);
  const { plan } = await resolvePlan(file, { ...choice, context, profile });
  printResult(json, describePlan(plan, context, choice.contextMemory), description =>
    render(description, expectationOf(plan, profile)),
  );
}

function describePlan(plan: Plan, context: number, budget?: number) {
  const { spec: kv, preset, bits, predicted, window, pageTokens, notice } = plan;
  const layers = plan.codecs.map(({ keys, values }, layer) => ({
    layer,
    key: { spec: keys.spec, bits: codeBits(keys) },
    value: { spec: values.spec, bits: codeBits(values) },
  }));
  return {
    ...{ kv, preset, bits, predicted, window, pageTokens, context },
    bytes: planBytes(plan, context),
    bytesPerToken: plan.leaf.bytes / pageTokens,
    budget,
    tokensThatFit: budget === undefined ? undefined : maxTokensIn(plan, budget),
    notice,
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
