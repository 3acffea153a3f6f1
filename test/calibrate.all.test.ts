/** Calibration with the built command and tiny random models. */
import { existsSync, readdirSync } from 'node:fs';
import { copyFile, mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { loadModel, UnsupportedError } from '../src/index.ts';
import { readProfile } from '../src/plan/profile-store.ts';
import { kvasir } from './support/command.ts';
import { writeTempModel } from './support/gguf-writer.ts';
import { itAll, matrix } from './support/matrix.ts';
import { tinyModel } from './support/tiny-model.ts';

const folder = () => mkdtemp(join(tmpdir(), 'kvasir-calibrate-'));
const small = ['--tokens', '768', '--context', '192', '--samples', '512'];
let model: string;
let text: string;
let kvasirCache: string;
let path: string;

const args = (...more: string[]) => ['calibrate', model, '--json', ...small, ...more];

beforeAll(async () => {
  const spec = tinyModel({ tied: false, headDim: 32, context: 2048, bias: true });
  model = await writeTempModel(spec);
  text = join(model, '..', 'text.txt');
  await writeFile(text, 'Odin carried the mead of poetry home in the shape of an eagle. '.repeat(20));
  kvasirCache = await folder();
  const { status, stdout, stderr } = await kvasir(args('--text', text, '--only-text'), { kvasirCache });
  expect([status, stderr]).toEqual([0, expect.stringMatching(/1 reading/)]);
  path = JSON.parse(stdout).path;
});

describe('kvasir calibrate', () => {
  it('stores a profile under the fingerprint of the model, and no other file', async () => {
    const { fingerprint, provenance, learned, sensitivities } = await readProfile(path);
    expect(path).toBe(join(kvasirCache, 'profiles', `${fingerprint}.kvprofile`));
    // In each of 4 rows, all tokens that later queries read from codes: not the 16 sinks and the last 96 tokens.
    expect(provenance).toMatchObject({
      tokens: 768,
      context: 192,
      samples: 320,
      codecs: expect.arrayContaining(['tq35-v']),
    });
    expect(learned.map(({ key }) => key.variance?.length)).toEqual([64, 64]);
    // A row of 192 tokens seals a page of 128, so every side of every layer has a sensitivity.
    expect(sensitivities.mead2).toHaveLength(2);
    for (const { key, value } of sensitivities.mead2) {
      expect(key).toBeGreaterThan(1e-7);
      expect(value).toBeGreaterThan(1e-7);
    }
    expect(readdirSync(join(kvasirCache, 'calibrate'))).toEqual([]);
  });

  it('announces probing only if it probes', async () => {
    const announced = async (...more: string[]) => {
      const interruptWhen = ({ stderr }: { stderr: string }) => stderr.includes('in total');
      return (
        await kvasir(args('--text', text, '--only-text', ...more), { kvasirCache: await folder(), interruptWhen })
      ).stderr;
    };
    expect(await announced()).toMatch(/^Three stages: .*, .*, and 2 layers are probed\./);
    expect(await announced('--probe-tokens', '0')).toMatch(
      /^Two stages: \S+ tokens are read .* and .* are trained on them\.\n/,
    );
  });

  // `npm test` interrupts the library: src/calibrate/calibrate.test.ts.
  itAll.each(['reading', 'learning', 'probing'])('interrupted while %s, continues to the same profile', async stage => {
    const { hash } = await readProfile(path);
    const again = { kvasirCache: await folder() };
    const interruptWhen = ({ stderr }: { stderr: string }) => stderr.includes(stage);
    const first = await kvasir(args('--text', text, '--only-text'), { ...again, interruptWhen });
    // A fast machine may finish before the signal arrives; then there is nothing to continue.
    if (first.status !== 0) {
      expect([first.status, first.stdout]).toEqual([130, '']);
      expect(first.stderr).toMatch(/progress is saved/);
      expect(readdirSync(join(again.kvasirCache, 'calibrate'))).toHaveLength(1);
    }
    const second = await kvasir(args('--text', text, '--only-text'), again);
    expect([second.status, JSON.parse(second.stdout).hash]).toEqual([0, hash]);
  });

  it('reads the built-in text', async () => {
    const out = join(await folder(), 'built-in.kvprofile');
    const quick = ['--kv', 'tq35-v', '--probe-tokens', '0'];
    const { status, stdout, stderr } = await kvasir(args('--out', out, ...quick), { kvasirCache: await folder() });
    const { sources } = JSON.parse(stdout).provenance;
    const kinds = ['encyclopedia', 'prose', 'chat', 'web-code', 'c-headers', 'maths', 'recall'];
    expect([status, sources.map(({ name }: { name: string }) => name)]).toEqual([0, expect.arrayContaining(kinds)]);
    expect(stderr).toMatch(/Text: encyclopedia/);
  });

  itAll('reads --text in addition to the built-in text', async () => {
    const out = join(await folder(), 'both.kvprofile');
    const more = await kvasir(args('--text', text, '--out', out), { kvasirCache: await folder() });
    expect(JSON.parse(more.stdout).provenance.sources.at(-1)).toEqual({ name: 'text.txt', tokens: 384 });
    expect(JSON.parse(more.stdout).provenance.tokens).toBe(768);
  });

  const MISTAKES: [string[], RegExp][] = [
    [['--text', '/nowhere.txt'], /nowhere.txt cannot be read/],
    [['--only-text'], /--only-text is set, but no text was given/],
    [['--text', 'TEXT', '--only-text', '--context', '1024'], /text is too short: calibration needs/],
    [['--text', 'TEXT', '--kv', 'tq9'], /not a codec/],
    [['--text', 'TEXT', '--probe-tokens', '3'], /Sensitivities need a row .* it would be 6\. .*or --probe-tokens 0\./],
  ];
  const REPRESENTATIVES = { '/nowhere.txt': 'no text', 1024: 'a text that is too short', 3: 'an invalid option' };
  it.each(matrix(MISTAKES, REPRESENTATIVES, ([more]) => more.at(-1)!))('%j is refused', async (more, message) => {
    const { status, stderr } = await kvasir(args(...more.map(arg => (arg === 'TEXT' ? text : arg))), { kvasirCache });
    expect([status, stderr]).toEqual([1, expect.stringMatching(message)]);
  });
});

describe('a calibrated codec', () => {
  it('finds the profile of the model', async () => {
    const run = ['run', model, 'Once', '--raw', '--json', '--kv', 'tq35-v', '--temperature', '0', '--max-tokens', '8'];
    const found = await kvasir(run, { kvasirCache });
    expect([found.status, JSON.parse(found.stdout).ids.length]).toEqual([0, 8]);
    const missing = await kvasir(run, { kvasirCache: await folder() });
    expect([missing.status, missing.stderr]).toEqual([
      1,
      expect.stringContaining(`Run: kvasir calibrate ${model} (about 3 seconds here)`),
    ]);
    const withPath = await kvasir([...run, '--profile', path], { kvasirCache: await folder() });
    expect(JSON.parse(withPath.stdout).ids).toEqual(JSON.parse(found.stdout).ids);
  });

  it('without a profile is an error with the command to run', async () => {
    process.env.KVASIR_CACHE = kvasirCache;
    await expect(loadModel(model, { kv: 'vec-d8b4' })).rejects.toThrow(
      /profile only covers .*tq35-v.*Run: kvasir calibrate \S+ --kv vec-d8b4 \(about/,
    );
    process.env.KVASIR_CACHE = await folder();
    await expect(loadModel(model, { kv: 'mead3' })).rejects.toThrow(
      /it has no profile. Run: kvasir calibrate \S+ \(about/,
    );
    await expect(loadModel(model, { kv: 'vec-d8b12+recent8' })).rejects.toThrow(/--kv vec-d8b12 \(about/);
  });

  itAll('is evaluated at the same bits as the codec without a profile', async () => {
    const args = ['eval', model, '--text', text, '--context', '384', '--kv', 'tq35,tq35-v', '--json'];
    const { stdout } = await kvasir(args, { kvasirCache });
    const [, plain, learned] = JSON.parse(stdout);
    expect(learned).toMatchObject({ kv: 'tq35-v', bits: plain.bits });
    expect([learned.kld > 0, learned.kld === plain.kld]).toEqual([true, false]);
  });

  it('finds a profile next to the model file, and rejects the profile of another model', async () => {
    const dir = await folder();
    const moved = join(dir, 'model.gguf');
    await copyFile(model, moved);
    await copyFile(path, join(dir, 'model.kvprofile'));
    process.env.KVASIR_CACHE = await folder();
    await using loaded = await loadModel(moved, { kv: 'tq35-v', device: 'js' });
    expect(loaded.plan.spec).toBe('tq35-v');
    expect(existsSync(join(process.env.KVASIR_CACHE, 'profiles'))).toBe(false);

    const other = await writeTempModel(tinyModel({ tied: false, headDim: 32, context: 2048, bias: true, seed: 2 }));
    await expect(loadModel(other, { kv: 'tq35-v', profile: path })).rejects.toThrow(UnsupportedError);
    await expect(loadModel(other, { kv: 'tq35-v', profile: path })).rejects.toThrow(/is for another model/);
    await expect(loadModel(other, { kv: 'tq35-v' })).rejects.toThrow(/kvasir calibrate/);
    await using plain = await loadModel(other, { kv: 'tq4', device: 'js' });
    expect(plain.plan.bits).toBe(4.5625);
  });
});
