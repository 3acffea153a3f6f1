import { existsSync, readdirSync, readlinkSync } from 'node:fs';
import { mkdtemp, readdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, expect, it, vi } from 'vitest';
import { writeTempModel } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { loadModel } from '../api/model.ts';
import { type CalibrateOptions, type CalibrationProgress, type CalibrationWork, calibrate } from '../eval.ts';
import { AUTO, choosePlan } from '../plan/auto.ts';
import { planShapeOf } from '../plan/plan.ts';
import { readProfile } from '../plan/profile-store.ts';
import { FormatError, InputError } from '../util/errors.ts';
import { packageVersion } from '../util/version.ts';

const linkOf = (path: string) => {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
};

const texts = ['Odin carried the mead of poetry home in the shape of an eagle. '.repeat(20)];
const options: CalibrateOptions = {
  texts,
  onlyTexts: true,
  tokens: 384,
  context: 192,
  samples: 64,
  codecs: ['tq35-v'],
  device: 'wasm',
  threads: 1,
  workers: 0,
};
let model: string;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ tied: false, headDim: 32 }));
  process.env.KVASIR_CACHE = await mkdtemp(join(tmpdir(), 'kvasir-calibrate-'));
});

it('writes a profile that loadModel finds, and returns it', async () => {
  const work: CalibrationWork[] = [];
  const progress: CalibrationProgress[] = [];
  const result = await calibrate(model, {
    ...options,
    onStart: started => work.push(started),
    onProgress: now => progress.push(now),
  });
  expect(work).toMatchObject([
    { tokens: 384, sources: [{ name: 'text 1', tokens: 384 }], context: 192, codecs: ['tq35-v'], layers: 2 },
  ]);
  expect([...new Set(progress.map(({ stage }) => stage))]).toEqual(['hashing', 'reading', 'learning', 'probing']);
  expect(progress.find(({ stage }) => stage === 'learning')).toEqual({ stage: 'learning', done: 1, total: 4 });
  expect(progress.at(-1)).toEqual({ stage: 'probing', done: 6, total: 6 });

  const { path, profile } = result!;
  expect(profile).toEqual(await readProfile(path));
  expect(profile.provenance).toMatchObject({ tokens: 384, context: 192, codecs: ['tq35-v'], version: packageVersion });
  await using loaded = await loadModel(model, { kv: 'auto-tq:3', device: 'js' });
  expect(loaded.plan.predicted).toBeGreaterThan(0);
  await using withProfile = await loadModel(model, { kv: 'tq35-v', profile, device: 'js' });
  expect(withProfile.plan.spec).toBe('tq35-v');
});

it('learns for the window and RoPE of each layer, of a model with norms after attention', async () => {
  const spec = { architecture: 'gemma3', headDim: 32, layers: 2, tied: false } as const;
  const windows = { 'gemma3.attention.sliding_window': 40, 'gemma3.attention.sliding_window_pattern': 2 };
  const windowed = await writeTempModel(tinyModel({ ...spec, metadata: windows }));
  const { profile } = (await calibrate(windowed, { ...options, codecs: ['mead2'] }))!;
  expect(profile.shape.attentionWindows).toEqual([40, undefined]);
  expect(profile.measurements.map(({ kv }) => kv)).toEqual(['mead2', 'mead3', 'tq4']);
  for (const { key, value } of profile.sensitivities.mead2) expect(Math.min(key, value)).toBeGreaterThan(0);
  expect(choosePlan({ ...AUTO, bits: 2 }, planShapeOf(profile.shape), profile).predicted).toBeGreaterThan(0);
  await using model = await loadModel(windowed, { kv: 'mead3', device: 'js' });
  expect(model.plan.predicted).toBeGreaterThan(0);
});

it('is undefined when the signal aborts it, and the next call continues', async () => {
  const out = join(await mkdtemp(join(tmpdir(), 'kvasir-out-')), 'a.kvprofile');
  const stop = new AbortController();
  const first = await calibrate(model, {
    ...options,
    seed: 1,
    out,
    signal: stop.signal,
    onProgress({ stage }) {
      if (stage === 'learning') stop.abort();
    },
  });
  expect([first, existsSync(out)]).toEqual([undefined, false]);
  const progress: CalibrationProgress[] = [];
  const second = await calibrate(model, { ...options, seed: 1, out, onProgress: now => progress.push(now) });
  // Both rows were read before.
  expect(progress.filter(({ stage }) => stage === 'reading').map(({ done }) => done)).toEqual([1, 2]);
  expect(second!.path).toBe(out);
  expect(await readdir(join(process.env.KVASIR_CACHE!, 'calibrate'))).toEqual([]);
});

it.each([
  ['before it begins', () => AbortSignal.abort(), {}],
  ['while the model is loaded', (stop: AbortController) => stop.signal, { onStart: true }],
])('is undefined when the signal aborts it %s', async (_, signalOf, { onStart }: { onStart?: boolean }) => {
  const stop = new AbortController();
  const result = await calibrate(model, {
    ...options,
    seed: 2,
    signal: signalOf(stop),
    onStart: () => onStart && stop.abort(),
  });
  expect(result).toBeUndefined();
});

it.runIf(process.platform === 'linux')('closes the model file if it fails before the first stage', async () => {
  const isOpen = () => readdirSync('/proc/self/fd').some(fd => linkOf(`/proc/self/fd/${fd}`) === model);
  const failing = calibrate(model, {
    ...options,
    onStart() {
      expect(isOpen()).toBe(true);
      throw new Error('stop here');
    },
  });
  await expect(failing).rejects.toThrow('stop here');
  expect(isOpen()).toBe(false);
});

it('checks where the profile is written before all work', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-out-'));
  const onStart = () => expect.unreachable('the work has begun');
  const file = join(folder, 'file');
  await writeFile(file, 'no profile');
  await expect(calibrate(model, { ...options, out: folder, onStart })).rejects.toThrow(/is not a file/);
  await expect(calibrate(model, { ...options, out: join(file, 'a.kvprofile'), onStart })).rejects.toThrow(InputError);
  // Codecs are added to the profile that is there.
  await expect(calibrate(model, { ...options, out: file, onStart })).rejects.toThrow(FormatError);
  vi.stubEnv('KVASIR_CACHE', file);
  const noCheckpoint = calibrate(model, { ...options, onStart });
  await expect(noCheckpoint).rejects.toThrow(/cannot be written \(ENOTDIR\)\. Set KVASIR_CACHE/);
  vi.unstubAllEnvs();
});

it('adds codecs to an existing profile', async () => {
  const out = join(await mkdtemp(join(tmpdir(), 'kvasir-out-')), 'b.kvprofile');
  const { profile: first } = (await calibrate(model, { ...options, out }))!;
  const { profile: both } = (await calibrate(model, { ...options, out, codecs: ['oaken'], probeTokens: 0 }))!;
  expect(both.provenance.codecs).toEqual(['tq35-v', 'oaken']);
  expect(Object.keys(both.learned[0].key).sort()).toEqual(['oaken', 'variance']);
  expect([both.sensitivities, both.measurements]).toEqual([first.sensitivities, first.measurements]);
  const { profile: anew } = (await calibrate(model, { ...options, out, codecs: undefined, probeTokens: 0 }))!;
  expect([anew.sensitivities, anew.measurements]).toEqual([{}, []]);
});

it.each<[object, RegExp]>([
  [{ probeTokens: -1 }, /^probeTokens must be an integer, 0 or more; got the number -1/],
  [
    { probeTokens: 64 },
    /^Sensitivities need a row of more than a page \(128 tokens\); it would be 128\. .*or probeTokens 0\.$/,
  ],
  [{ context: 64 }, /^Sensitivities need a row .* it would be 64\. .*a larger context/],
  [{ context: 8 }, /^context must be an integer, 16 or more/],
  [{ texts: 'a' }, /^texts must be an array of strings or \{ name, text \}; got the string "a"/],
  [{ onlyTexts: true }, /^onlyTexts is set, but no text was given/],
  [{ special: true }, /calibrate has no option special/],
])('refuses %j', async (invalid, message) => {
  const error = await calibrate(model, invalid).catch(error => error);
  expect(error).toBeInstanceOf(InputError);
  expect(error.message).toMatch(message);
});
