/** What `kvasir inspect` says about a model and its cache, with and without a profile. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Command } from 'commander';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { type FakeHub, fakeHub, repo } from '../../test/support/fake-hub.ts';
import { type GgufSpec, writeGguf, writeTempModel } from '../../test/support/gguf-writer.ts';
import { measuredContent } from '../../test/support/profile.ts';
import { plantKeyBias, tinyModel } from '../../test/support/tiny-model.ts';
import { openModelFile } from '../engine/engine.ts';
import { modelFingerprint } from '../engine/model-fingerprint.ts';
import { profileShape } from '../engine/profile.ts';
import { encodeProfile } from '../plan/profile.ts';
import { addInspect } from './inspect.ts';

let cache: string;
let model: string;
let profile: string;
let out: string;

beforeAll(async () => {
  cache = await mkdtemp(join(tmpdir(), 'kvasir-cache-'));
  vi.stubEnv('KVASIR_CACHE', cache);
  const spec = tinyModel({ architecture: 'qwen2', layers: 3, headDim: 32, context: 2048 });
  model = await writeTempModel(plantKeyBias(spec, 1, 200));
  const file = await openModelFile(model);
  await file.gguf.close();
  profile = join(cache, 'given.kvprofile');
  const content = measuredContent({ fingerprint: await modelFingerprint(file), shape: profileShape(file) });
  await writeFile(profile, await encodeProfile(content));
});
beforeEach(() => {
  out = '';
  vi.spyOn(console, 'log').mockImplementation(text => {
    out += `${text}\n`;
  });
});
afterEach(() => {
  vi.restoreAllMocks();
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await rm(cache, { recursive: true });
  await rm(dirname(model), { recursive: true });
});

async function run(...args: string[]): Promise<string> {
  const program = new Command().exitOverride();
  addInspect(program);
  await program.parseAsync(['inspect', ...args], { from: 'user' });
  return out;
}

describe('the presets', () => {
  it('are compared', async () => {
    const text = await run(model, '--memory', '1GiB');
    expect(text).toContain('one sequence of 2,048 tokens');
    expect(text).toMatch(/safe +q8_0 +8\.563 +[\d.]+ KiB +[\d,]+ +not known\nbalanced +tq4 .*\nsmall +tq3 /);
    expect(text).toContain('The expected divergence is not known without a profile: kvasir calibrate MODEL');
  });

  it('are compared with a profile', async () => {
    const text = await run(model, '--profile', profile);
    expect(text).toMatch(/safe +q8_0 .* not in the profile\nbalanced +kivi2g32 .* \.0125\nsmall +tq1 .* \.5\n/);
  });

  it('--json has the same numbers', async () => {
    const { presets, room } = JSON.parse(await run(model, '--memory', '1GiB', '--profile', profile, '--json'));
    expect(presets[1]).toMatchObject({ preset: 'balanced', kv: 'kivi2g32', predicted: 0.0125 });
    expect(room).toBeLessThan(2 ** 30);
    expect(presets[2].maxTokens).toBeGreaterThan(presets[0].maxTokens);
    expect(presets[2].bytes).toBeLessThan(presets[0].bytes);
  });
});

describe('the layers of a cache', () => {
  it.each([
    [['--quality', 'balanced'], /^balanced: kivi2g32: .*[\s\S]*divergence from f16: \.0125 nats per token, measured/],
    [['--kv', 'tq4'], /^tq4: [\s\S]*divergence from f16: \.25 nats per token, measured by calibration/],
    [['--kv', 'tq3'], /This profile has no measurement of tq3; `kvasir eval` measures it\./],
  ])('%j with a profile', async (flags, expected) => {
    expect(await run(model, '--profile', profile, ...flags)).toMatch(expected);
  });

  it('a codec without a profile', async () => {
    expect(await run(model, '--kv', 'tq4')).toContain('not known without a profile: kvasir calibrate MODEL');
  });

  it('refuses a preset with a codec or a memory budget', async () => {
    await expect(run(model, '--kv', 'tq4', '--quality', 'safe')).rejects.toThrow(/kv: 'tq4' and quality: 'safe' both/);
    await expect(run(model, '--quality', 'safe', '--context-memory', '1MB')).rejects.toThrow(/or contextMemory/);
    await expect(run(model, '--quality', 'best')).rejects.toThrow('"best" is not a preset. Use safe, balanced');
  });
});

describe('a model', () => {
  it('names the default cache and a large K bias', async () => {
    const text = await run(model);
    expect(text).toMatch(/^cache +balanced: tq4, 4\.\d\d bits per value$/m);
    expect(text).toMatch(
      /^K bias +up to 1,600 \(layer 1; median \d\): codecs of few bits that share a scale across channels need/m,
    );
    expect(text).toMatch(/^profile +none; kvasir calibrate MODEL learns one$/m);
    expect(text).not.toContain('nats');
  });

  it('says what fits into the memory beside the weights, and into tiers', async () => {
    const flags = ['--memory', '64MiB', '--tier', 'host=1GiB', '--kv', 'f16,tq4', '--json'];
    const { room, memory } = JSON.parse(await run(model, ...flags));
    expect(room).toBeLessThan(64 * 2 ** 20);
    for (const { bytesPerToken, tokens, tiers } of memory) {
      expect(tokens).toBe(Math.floor(room / bytesPerToken));
      expect(tiers).toEqual([{ tier: 'host', tokens: Math.floor(2 ** 30 / bytesPerToken) }]);
    }
  });

  it('has the divergence that a profile has measured', async () => {
    const text = await run(model, '--profile', profile, '--kv', 'f16,tq4');
    expect(text).toMatch(/^cache +balanced: kivi2g32, .* expected divergence \.0125 nats per token \(profile\)$/m);
    expect(text).toMatch(/^f16 .* not in the profile\ntq4 .* \.25$/m);
    // By default also what was measured.
    expect(await run(model, '--profile', profile)).toMatch(/^kivi2g32 .* \.0125$/m);
  });

  it('has the size of an f16 cache with windows and without', async () => {
    const metadata = { 'gemma3.attention.sliding_window': 128 };
    const windowed = await writeTempModel(tinyModel({ architecture: 'gemma3', layers: 12, headDim: 32, metadata }));
    const text = await run(windowed, '--context', '32k', '--kv', 'f16,tq4');
    await rm(dirname(windowed), { recursive: true });
    expect(text).toMatch(/^windows +10 layers see the last 128 tokens, the others all$/m);
    // 12 layers of 2 KV heads of 32 dims take 3 KiB per token.
    const [, bytes] = text.match(
      /^ +an f16 cache of 32,768 tokens takes ([\d.]+) MiB, and without windows 96\.00 MiB$/m,
    )!;
    expect(Number(bytes)).toBeGreaterThan(96 / 6);
    expect(Number(bytes)).toBeLessThan(96 / 6 + 2);
    out = '';
    expect(await run(model)).not.toContain('windows');
  });

  it('--json has them too', async () => {
    const found = JSON.parse(await run(model, '--profile', profile, '--kv', 'tq4,f16', '--json'));
    expect(found.keyBias).toMatchObject({ isLarge: true, largest: { layer: 1, norm: 1600 } });
    expect(found.cache).toMatchObject({ preset: 'balanced', spec: 'kivi2g32', predicted: 0.0125 });
    expect(found.memory[0]).toMatchObject({ spec: 'tq4', divergence: 0.25 });
    expect(found.profile).toBe(profile);
  });
});

describe('a model on the hub', () => {
  const spec = tinyModel({ width: 512, context: 2048 });
  let hub: FakeHub;
  const serve = async (files: Record<string, GgufSpec>) => {
    const entries = Object.entries(files).map(([name, spec]) => [name, { bytes: Buffer.from(writeGguf(spec)) }]);
    hub = await fakeHub(Object.fromEntries(entries));
    for (const [name, value] of Object.entries(hub.env)) vi.stubEnv(name, value);
  };
  afterEach(async () => {
    process.exitCode = undefined;
    await hub.close();
  });

  it('is shown by its header, without a download', async () => {
    await serve({ 'm-Q8_0.gguf': spec });
    const text = await run(repo, '--memory', '1GiB');
    expect(text).toContain(`file         ${repo}/m-Q8_0.gguf (on the hub, not downloaded)\nruns         yes\n`);
    expect(text).toMatch(/^f16 .*\n(.*\n)*tq4 /m);
    expect(hub.servedBytes).toBeLessThan(300_000);
    expect(hub.files['m-Q8_0.gguf'].bytes.length).toBeGreaterThan(5_000_000);
    expect(await run(repo, '--kv', 'tq4')).toContain('tq4: ');
  });

  it('that does not fit into memory says so', async () => {
    await serve({ 'm-Q8_0.gguf': spec });
    expect(await run(repo, '--memory', '1MiB')).toMatch(
      /^runs +not in this memory: the weights take [\d.]+ MiB, and 1\.00 MiB/m,
    );
    expect(process.exitCode).toBeUndefined();
  });

  it('that does not run says why', async () => {
    await serve({ 'm-Q8_0.gguf': { ...spec, metadata: { 'general.architecture': 'deepseek2' } } });
    expect(await run(repo)).toMatch(/^does not run: The architecture "deepseek2".* multi-head latent attention\./);
    expect(process.exitCode).toBe(1);
    out = '';
    const reason = expect.stringContaining('multi-head latent attention');
    expect(JSON.parse(await run(repo, '--json'))).toEqual({ model: repo, runs: false, reason });
  });
});

it.each([
  [[], 'Name a model or a profile, or give a --shape'],
  [['--shape', '36x8'], '"36x8" is not a shape. Write layers x KV heads x head dimension: 36x8x128.'],
  [['--shape', '2x2x64', '--quality', 'safe'], '--quality does not apply to a shape.'],
  [['a.kvprofile', '--context-memory', '1MB'], '--context-memory does not apply to a profile.'],
  [['MODEL', '--kv', 'tq4', '--tensors'], '--tensors does not apply to the layers of a cache.'],
])('refuses %j', async (flags, message) => {
  await expect(run(...flags.map(flag => (flag === 'MODEL' ? model : flag)))).rejects.toThrow(message);
});
