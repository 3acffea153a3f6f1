/** `kvasir profile`: for which model a profile is, what it was learned on, and what to expect of it. */
import { stat } from 'node:fs/promises';
import type { Command } from 'commander';
import { needsProfile } from '../codec/kv.ts';
import { parseSpec } from '../codec/spec.ts';
import { zoo } from '../codec/zoo.ts';
import { openModelFile } from '../engine/engine.ts';
import { modelFingerprint } from '../engine/model-fingerprint.ts';
import { estimateCalibrationSeconds, shellQuote } from '../engine/profile.ts';
import { profileNames } from '../hub/profile-name.ts';
import { fileSource } from '../model/source.ts';
import { AUTO, choosePlan } from '../plan/auto.ts';
import { learnedCovers } from '../plan/default-codecs.ts';
import type { PlanShape } from '../plan/plan.ts';
import { isProfileStart, type Profile } from '../plan/profile.ts';
import { openProfile } from '../plan/profile-input.ts';
import { findProfile, profilePath } from '../plan/profile-store.ts';
import { KvasirError, ShapeError, SpecError, UnsupportedError } from '../util/errors.ts';
import { formatCount, formatDuration, formatFileSize } from '../util/units.ts';
import { resolveProfileFlag } from './profile-flag.ts';
import { formatShort, formatTable } from './table.ts';

/** Bits per value of the plans whose divergence is predicted. */
const PLAN_BITS = [1.5, 2, 2.5, 3, 4];
const LISTED_LAYERS = 5;

export function addProfile(program: Command): void {
  program
    .command('profile')
    .description('show what a profile was learned on, for which model and codecs, and what to expect of them')
    .argument(
      '<profile>',
      'a .kvprofile file, a URL, org/repo:file.kvprofile, or a model: shows the profile that it uses',
    )
    .option('--json', 'print as JSON')
    .action(async (name: string, { json }: { json?: boolean }) => {
      const found = (await isProfileName(name)) ? await readNamed(name) : await findForModel(name);
      const description = await describeProfile(found);
      console.log(json ? JSON.stringify(description, null, 1) : render(description));
    });
}

interface Found {
  profile: Profile;
  /** A path or a URL. */
  path: string;
}

/** Whether the argument names a profile, not a model. */
async function isProfileName(text: string): Promise<boolean> {
  if (/^https?:|\.kvprofile$/i.test(text)) return true;
  const file = await fileSource(text).catch(() => undefined);
  if (!file) return false;
  try {
    return isProfileStart(await file.read(0, Math.min(file.size, 8)));
  } finally {
    await file.close();
  }
}

async function readNamed(text: string): Promise<Found> {
  const path = (await resolveProfileFlag(text)) ?? text;
  return { profile: await openProfile(path), path };
}

async function findForModel(model: string): Promise<Found> {
  const file = await openModelFile(model);
  await file.gguf.close();
  const [modelPath] = file.paths;
  const fingerprint = await modelFingerprint(file);
  const { profile, path, notice } = await findProfile(modelPath, fingerprint);
  if (notice) console.error(notice);
  if (profile && path !== undefined) return { profile, path };
  const places = [...profileNames(modelPath), await profilePath(fingerprint)];
  throw new UnsupportedError(
    `${model} has no profile. Learn one: kvasir calibrate ${shellQuote(model)} (about ` +
      `${formatDuration(await estimateCalibrationSeconds(file))} here). It is also found if you put it into one of these files:` +
      places.map(place => `\n  ${place}`).join(''),
  );
}

async function describeProfile({ profile, path }: Found) {
  const { hash, fingerprint, provenance, sensitivities } = profile;
  const { layers, kvHeads, headDim, ropeFrequencies } = profile.shape;
  const shape: PlanShape = { layers, kvHeads, headDim, ropeFrequencies: Float64Array.from(ropeFrequencies) };
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
  const line = (name: string, text: string) => `${name.padEnd(13)}${text}`;
  const section = (title: string, header: string[], rows: (string | number)[][]) =>
    rows.length > 0 ? ['', title, formatTable(header, rows)] : [];
  return [
    line('profile', path),
    ...(bytes === undefined ? [] : [line('size', formatFileSize(bytes))]),
    line('model', model || 'its name is not recorded'),
    line('fingerprint', fingerprint),
    line('shape', `${shape.layers} layers x ${shape.kvHeads} KV heads x ${shape.headDim} dims`),
    line(
      'learned on',
      `${formatCount(tokens)} tokens in rows of ${formatCount(context)}, seed ${seed}, Kvasir ${version}`,
    ),
    line('samples', `${formatCount(samples)} keys and values per layer`),
    line('codecs', codecs.covered.join(', ') || 'none'),
    ...(codecs.missing.length > 0
      ? [line('not covered', `${codecs.missing.join(', ')} (calibrate with --codecs)`)]
      : []),
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
