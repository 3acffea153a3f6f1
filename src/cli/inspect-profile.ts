/** `kvasir inspect FILE.kvprofile`: for which model a profile is, what it was learned on, and what to expect of it. */
import { stat } from 'node:fs/promises';
import { needsProfile } from '../codec/kv.ts';
import { parseSpec } from '../codec/spec.ts';
import { zoo } from '../codec/zoo.ts';
import { fileSource } from '../model/source.ts';
import { AUTO, choosePlan } from '../plan/auto.ts';
import { learnedCovers } from '../plan/default-codecs.ts';
import { type PlanShape, planShapeOf } from '../plan/plan.ts';
import { isProfileStart, type Profile } from '../plan/profile.ts';
import { openProfile } from '../plan/profile-input.ts';
import { KvasirError, ShapeError, SpecError } from '../util/errors.ts';
import { formatCount, formatFileSize } from '../util/units.ts';
import { resolveProfileFlag } from './profile-flag.ts';
import { formatFields, formatShort, formatTable, printResult } from './table.ts';

/** Bits per value of the plans whose divergence is predicted. */
const PLAN_BITS = [1.5, 2, 2.5, 3, 4];
const LISTED_LAYERS = 5;

/** Whether the argument names a profile, not a model. */
export async function isProfileName(text: string): Promise<boolean> {
  if (/^https?:(?!.*\.gguf\b)|\.kvprofile$/i.test(text)) return true;
  const file = await fileSource(text).catch(() => undefined);
  if (!file) return false;
  try {
    return isProfileStart(await file.read(0, Math.min(file.size, 8)));
  } finally {
    await file.close();
  }
}

/** `name`: a file, a URL, or org/repo:file.kvprofile. */
export async function showProfile(name: string, { json }: { json?: boolean }): Promise<void> {
  const path = (await resolveProfileFlag(name)) ?? name;
  printResult(json, await describeProfile(await openProfile(path), path), render);
}

async function describeProfile(profile: Profile, path: string) {
  const { hash, fingerprint, provenance, sensitivities } = profile;
  const { layers, kvHeads, headDim } = profile.shape;
  const shape = planShapeOf(profile.shape);
  return {
    path,
    bytes: (await stat(path).catch(() => undefined))?.size,
    ...{ hash, fingerprint, shape: { layers, kvHeads, headDim }, provenance },
    codecs: listCodecs(profile, shape),
    measurements: [...profile.measurements].sort((a, b) => a.bits - b.bits),
    plans: PLAN_BITS.flatMap(bits => predictPlan(bits, profile, shape)),
    sensitiveLayers: rankLayers(sensitivities.mead2 ?? Object.values(sensitivities)[0] ?? []),
  };
}

/** The calibrated codecs that the profile has everything for, and those that it lacks. */
function listCodecs({ learned, provenance }: Profile, shape: PlanShape) {
  const covered: string[] = [];
  const missing: string[] = [];
  for (const spec of new Set([...zoo.filter(codec => needsProfile(parseSpec(codec))), ...provenance.codecs])) {
    try {
      (learnedCovers(learned[0], parseSpec(spec), shape) ? covered : missing).push(spec);
    } catch (error) {
      if (!(error instanceof KvasirError)) throw error;
      // No profile can help a codec that does not support the model's head dimension, or one of an earlier version.
      if (!(error instanceof ShapeError || error instanceof SpecError)) missing.push(spec);
    }
  }
  return { covered, missing };
}

/** The plan of this many bits, if the profile can predict its divergence. */
function predictPlan(bits: number, profile: Profile, shape: PlanShape) {
  try {
    const plan = choosePlan({ ...AUTO, bits }, shape, profile);
    return plan.predicted === undefined ? [] : [{ kv: plan.spec, bits: plan.bits, kld: plan.predicted }];
  } catch (error) {
    if (error instanceof KvasirError) return [];
    throw error;
  }
}

function rankLayers(sensitivities: Profile['sensitivities'][string]) {
  const rows = sensitivities.map(({ key, value }, layer) => ({ layer, key, value, total: key + value }));
  const sum = rows.reduce((all, { total }) => all + total, 0);
  return rows
    .sort((a, b) => b.total - a.total)
    .slice(0, LISTED_LAYERS)
    .map(({ layer, key, value, total }) => ({ layer, key, value, share: sum > 0 ? total / sum : 0 }));
}

type Description = Awaited<ReturnType<typeof describeProfile>>;

function render(description: Description): string {
  const { path, bytes, fingerprint, shape, provenance, codecs, measurements, plans, sensitiveLayers } = description;
  const { model, tokens, samples, context, seed, version, sources } = provenance;
  const section = (title: string, header: string[], rows: (string | number)[][]) =>
    rows.length > 0 ? ['', title, formatTable(header, rows)] : [];
  return [
    ...formatFields([
      ['profile', path],
      ['size', bytes === undefined ? undefined : formatFileSize(bytes)],
      ['model', model || 'its name is not recorded'],
      ['fingerprint', fingerprint],
      ['shape', `${shape.layers} layers x ${shape.kvHeads} KV heads x ${shape.headDim} dims`],
      [
        'learned on',
        `${formatCount(tokens)} tokens in rows of ${formatCount(context)}, seed ${seed}, Kvasir ${version}`,
      ],
      ['samples', `${formatCount(samples)} keys and values per layer`],
      ['codecs', codecs.covered.join(', ') || 'none'],
      ['not covered', codecs.missing.length > 0 ? `${codecs.missing.join(', ')} (calibrate with --kv)` : undefined],
    ]),
    ...section(
      'Text',
      ['source', 'tokens'],
      sources.map(({ name, tokens }) => [name, formatCount(tokens)]),
    ),
    ...section(
      'Measured on text that was held out: divergence from f16, in nats per token',
      ['cache', 'bits', 'divergence'],
      measurements.map(toRow),
    ),
    ...section('Predicted on text like this', ['plan', 'bits', 'divergence'], plans.map(toRow)),
    ...section(
      'Most sensitive layers: their parts of the divergence',
      ['layer', 'keys', 'values', 'share'],
      sensitiveLayers.map(({ layer, key, value, share }) => [
        layer,
        formatShort(key),
        formatShort(value),
        `${(100 * share).toFixed(1)}%`,
      ]),
    ),
  ].join('\n');
}

const toRow = ({ kv, bits, kld }: Profile['measurements'][number]) => [kv, bits.toFixed(3), formatShort(kld)];
