/** Calibration from the outside: tiny random models, through the command as it is built. */
import { existsSync, readdirSync } from 'node:fs';
import { copyFile, mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { loadModel, UnsupportedError } from '../src/index.ts';
import { readProfile } from '../src/plan/store.ts';
import { kvasir } from './command.ts';
import { writeTempModel } from './gguf-writer.ts';
import { tinyModel } from './tiny-model.ts';

const folder = () => mkdtemp(join(tmpdir(), 'kvasir-calibrate-'));
const small = ['--tokens', '512', '--context', '64', '--samples', '256'];
let model: string;
let text: string;
let own: string;
let path: string;

const args = (...more: string[]) => ['calibrate', model, '--json', ...small, ...more];

beforeAll(async () => {
  const spec = tinyModel({ tied: false, headDim: 32, context: 2048, bias: true });
  model = await writeTempModel(spec);
  text = join(model, '..', 'text.txt');
  await writeFile(text, 'Odin carried the mead of poetry home in the shape of an eagle. '.repeat(20));
  own = await folder();
  const { status, stdout, stderr } = await kvasir(args('--text', text), { own });
  expect([status, stderr]).toEqual([0, expect.stringMatching(/2 reading/)]);
  path = JSON.parse(stdout).path;
}, 60_000);

describe('kvasir calibrate', () => {
  it('leaves a profile in the store, by the fingerprint of the model, and nothing else', async () => {
    const { fingerprint, made, learned, sensitivities } = await readProfile(path);
    expect(path).toBe(join(own, 'profiles', `${fingerprint}.kvprofile`));
    // Of each of 8 rows: what later queries read from codes, all but 4 sinks and the last 32 tokens.
    expect(made).toMatchObject({ tokens: 512, context: 64, samples: 224, codecs: expect.arrayContaining(['tq4-c']) });
    expect(learned.map(({ key }) => key.mean?.length)).toEqual([64, 64]);
    for (const { key, value } of sensitivities['tq2-c']) {
      // A row of 64 tokens seals no page of 128: there is nothing to lose yet.
      expect([key, value]).toEqual([0, 0]);
    }
    expect(readdirSync(join(own, 'calibrate'))).toEqual([]);
  });

  it.each(['reading', 'learning', 'probing'])('stopped while %s, goes on to the very same profile', async stage => {
    const { hash } = await readProfile(path);
    const again = { own: await folder() };
    const interruptWhen = ({ stderr }: { stderr: string }) => stderr.includes(stage);
    const first = await kvasir(args('--text', text), { ...again, interruptWhen });
    // A fast machine may be through before the signal comes; then there is nothing to go on with.
    if (first.status !== 0) {
      expect([first.status, first.stdout]).toEqual([130, '']);
      expect(first.stderr).toMatch(/what is done is kept/);
      expect(readdirSync(join(again.own, 'calibrate'))).toHaveLength(1);
    }
    const second = await kvasir(args('--text', text), again);
    expect([second.status, JSON.parse(second.stdout).hash]).toEqual([0, hash]);
  });

  it('without text the model writes its own, and the same for the same seed', async () => {
    const out = join(await folder(), 'self.kvprofile');
    const { status, stdout, stderr } = await kvasir(args('--out', out), { own: await folder() });
    expect([status, JSON.parse(stdout).made.text]).toEqual([0, 'self']);
    expect(stderr).toMatch(/--text takes files/);
    const again = await kvasir(args('--self', '--out', out), { own: await folder() });
    expect(again.stderr).not.toMatch(/--text takes files/);
    expect(JSON.parse(again.stdout).hash).toBe(JSON.parse(stdout).hash);
    expect(JSON.parse(stdout).hash).not.toBe((await readProfile(path)).hash);
  });

  it('--self beside --text is half of it', async () => {
    const { status, stdout } = await kvasir(args('--text', text, '--self'), { own: await folder() });
    expect([status, JSON.parse(stdout).made]).toEqual([
      0,
      { ...(await readProfile(path)).made, text: expect.stringMatching(/^self\+[0-9a-f]{64}$/) },
    ]);
  });

  it.each([
    [['--text', '/nowhere.txt'], /nowhere.txt cannot be read/],
    [['--text', 'TEXT', '--context', '1024'], /needs two or more/],
    [['--text', 'TEXT', '--codecs', 'tq9'], /not a codec/],
    [['--text', 'TEXT', '--probe-tokens', '3'], /measure nothing/],
  ])('%j is refused', async (more, message) => {
    const { status, stderr } = await kvasir(args(...more.map(arg => (arg === 'TEXT' ? text : arg))), { own });
    expect([status, stderr]).toEqual([1, expect.stringMatching(message)]);
  });
});

describe('a codec that learned', () => {
  it('finds its profile by itself', async () => {
    const run = ['run', model, 'Once', '--raw', '--json', '--kv', 'tq4-c', '--temperature', '0', '--max-tokens', '8'];
    const found = await kvasir(run, { own });
    expect([found.status, JSON.parse(found.stdout).ids.length]).toEqual([0, 8]);
    const missing = await kvasir(run, { own: await folder() });
    expect([missing.status, missing.stderr]).toEqual([
      1,
      expect.stringContaining(`Run: kvasir calibrate ${model} (about 1 second here, once)`),
    ]);
    const named = await kvasir([...run, '--profile', path], { own: await folder() });
    expect(JSON.parse(named.stdout).ids).toEqual(JSON.parse(found.stdout).ids);
  });

  it('says what to run where calibration has not learned it', async () => {
    process.env.KVASIR_CACHE = own;
    await expect(loadModel(model, { kv: 'vec-d8b4' })).rejects.toThrow(
      /profile was made for .*tq4-c.*Run: kvasir calibrate \S+ --codecs \S*tq4-c\S*,vec-d8b4 \(about/,
    );
    process.env.KVASIR_CACHE = await folder();
    await expect(loadModel(model, { kv: 'mead3' })).rejects.toThrow(
      /no profile of it. Run: kvasir calibrate \S+ \(about/,
    );
    await expect(loadModel(model, { kv: 'vec-d8b12' })).rejects.toThrow(/--codecs mead2,\S*oaken\S*,vec-d8b12 \(about/);
  });

  it('is judged by eval, at the bits of its sibling that did not', async () => {
    const judge = ['eval', model, '--text', text, '--context', '384', '--kv', 'tq2,tq2-c', '--json'];
    const { stdout } = await kvasir(judge, { own });
    const [, plain, centred] = JSON.parse(stdout);
    expect(centred).toMatchObject({ kv: 'tq2-c', bits: plain.bits });
    expect([centred.kld > 0, centred.kld === plain.kld]).toEqual([true, false]);
  });

  it('finds a profile beside its model, and refuses one of another', async () => {
    const dir = await folder();
    const moved = join(dir, 'model.gguf');
    await copyFile(model, moved);
    await copyFile(path, join(dir, 'model.kvprofile'));
    process.env.KVASIR_CACHE = await folder();
    await using loaded = await loadModel(moved, { kv: 'tq3-c', device: 'js' });
    expect(loaded.plan.spec).toBe('tq3-c');
    expect(existsSync(join(process.env.KVASIR_CACHE, 'profiles'))).toBe(false);

    const other = await writeTempModel(tinyModel({ tied: false, headDim: 32, context: 2048, bias: true, seed: 2 }));
    await expect(loadModel(other, { kv: 'tq4-c', profile: path })).rejects.toThrow(UnsupportedError);
    await expect(loadModel(other, { kv: 'tq4-c', profile: path })).rejects.toThrow(/made for another model/);
    await expect(loadModel(other, { kv: 'tq4-c' })).rejects.toThrow(/kvasir calibrate/);
    await using plain = await loadModel(other, { kv: 'tq4', device: 'js' });
    expect(plain.plan.bits).toBe(4.5);
  });
});
