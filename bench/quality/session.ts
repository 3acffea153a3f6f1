/** What a run measures and with what: model, texts, profiles, plans. Nothing is measured yet. */

import { basename } from 'node:path';
import { codeBits } from '../../src/codec/codec.ts';
import { parseSpec } from '../../src/codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../../src/engine/engine.ts';
import { modelFingerprint } from '../../src/engine/model-fingerprint.ts';
import { resolveProfile } from '../../src/engine/profile.ts';
import { SCORED_PER_BLOCK } from '../../src/eval/divergence.ts';
import { type DeviceName, listDevices } from '../../src/kernel/open.ts';
import { parsePlanSpec } from '../../src/plan/auto.ts';
import { createPlan } from '../../src/plan/plan.ts';
import type { Profile } from '../../src/plan/profile.ts';
import { InputError } from '../../src/util/errors.ts';
import { MAX_GROUP, Plans } from './measure.ts';
import { createResults, DEFAULT_PROFILE, type LayerPair, type ProfileInfo, planId, type Results } from './results.ts';
import { ALL_CODECS, createSuite, planKey, type Section } from './suite.ts';
import { loadText, parseTexts, type Text } from './texts.ts';

export interface SessionOptions {
  model: string;
  device?: string;
  threads: string;
  /** Default: the model's own profile, as `kvasir eval` finds it. */
  profile?: string;
  texts?: string;
  rows?: string;
  context: string;
  /** Codecs of the tables. Default: all. */
  kv?: string;
  /** `name=profile,...`: profiles that were each learned on one kind of text. */
  transfer?: string;
}

export interface Session {
  context: number;
  device: DeviceName;
  texts: Text[];
  sections: Section[];
  plans: Plans;
  /** Results without measurements. */
  initial: Results;
  /** Loads the model for one page size, runs the work and frees the model. */
  withEngine<T>(mode: EngineMode, work: (engine: Engine) => Promise<T>): Promise<T>;
}

export interface EngineMode {
  pageTokens: number;
  precise: boolean;
}

const DEFAULT_ROWS = 4;
/** Plans whose bits by layer are shown. */
const LAYER_BITS = ['mead2', 'mead3'];

export async function openSession(options: SessionOptions): Promise<Session> {
  const { model, threads } = options;
  if (options.texts === undefined)
    throw new InputError('No texts were given. Example: --texts wiki=wiki.txt:100,code=code.txt,chat=chat.txt:special');
  const [context, rows] = [Number(options.context), Number(options.rows ?? DEFAULT_ROWS)];
  const device = await chooseDevice(options.device);
  const file = await openModelFile(model);
  await file.gguf.close();
  const specs = await parseTexts(options.texts);
  const texts = await Promise.all(specs.map(text => loadText(text, file.tokenizer, context, rows)));
  const { profile: own } = await resolveProfile(file, [parsePlanSpec('auto')], options.profile);
  const transfer = await Promise.all(
    (options.transfer?.split(',') ?? []).map(async (pair): Promise<[string, Profile]> => {
      const [name, path] = pair.split('=');
      if (!path) throw new InputError(`--transfer: "${pair}" must be name=profile.`);
      return [name, (await resolveProfile(file, [], path)).profile!];
    }),
  );
  const profiles = new Map([...(own ? [[DEFAULT_PROFILE, own] as const] : []), ...transfer]);
  const codecs = options.kv?.split(',') ?? [...ALL_CODECS];
  const { layers, headDim } = file.config;
  const sections = createSuite({
    texts: texts.map(({ name }) => name),
    rows,
    headDim,
    codecs,
    transfer: transfer.map(([name]) => name),
  });
  const plans = new Plans(planShape(file), profiles);
  const setup = {
    model: basename(file.paths[0] ?? model),
    fingerprint: (await modelFingerprint(file)) ?? '',
    parameters: [...file.gguf.tensors.values()].reduce(
      (sum, tensor) => sum + tensor.shape.reduce((a, b) => a * b, 1),
      0,
    ),
    ...{ device, layers, headDim, context },
  };
  return {
    ...{ context, device, texts, sections, plans },
    initial: {
      ...createResults(setup),
      codecs,
      texts: Object.fromEntries(texts.map(({ name, info }) => [name, info])),
      profiles: Object.fromEntries([...profiles].map(([name, profile]) => [name, describeProfile(profile)])),
      refused: findRefused(sections, plans),
      sensitivities: { ...own?.sensitivities },
      layerBits: layerBits(plans),
    },
    async withEngine({ pageTokens, precise }, work) {
      const file = await openModelFile(model);
      const plan = createPlan(parseSpec('f16'), planShape(file, pageTokens));
      const extra = MAX_GROUP.bytes + 4 * SCORED_PER_BLOCK * file.config.vocab;
      const engine = await loadEngine(file, { plan, context, extra }, { device, threads: Number(threads), precise });
      try {
        return await work(engine);
      } finally {
        await engine.dispose();
      }
    },
  };
}

/** The results say which device `auto` is. */
async function chooseDevice(name = 'auto'): Promise<DeviceName> {
  if (name !== 'auto') return name as DeviceName;
  const devices = await listDevices();
  return devices.find(({ missing, unwanted }) => !missing && !unwanted)!.name as DeviceName;
}

const describeProfile = ({ hash, provenance: { tokens, sources } }: Profile): ProfileInfo => ({
  hash,
  tokens,
  sources: sources.map(({ name }) => name),
});

function findRefused(sections: readonly Section[], plans: Plans): Results['refused'] {
  const keys = sections.flatMap(({ entries }) => entries.map(({ plan }) => plan));
  return Object.fromEntries(
    keys.flatMap(key => {
      const why = plans.refusal(key);
      return why ? [[planId(key), why]] : [];
    }),
  );
}

function layerBits(plans: Plans): Record<string, LayerPair[]> {
  const known = LAYER_BITS.map(kv => planKey(kv)).filter(key => !plans.refusal(key));
  return Object.fromEntries(
    known.map(key => [
      key.kv,
      plans.get(key).codecs.map(({ keys, values }) => ({ key: codeBits(keys), value: codeBits(values) })),
    ]),
  );
}
