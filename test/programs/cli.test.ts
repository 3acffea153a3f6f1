/** The built command line with tiny random models. */
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { openModelFile } from '../../src/engine/engine.ts';
import { modelFingerprint } from '../../src/engine/model-fingerprint.ts';
import { profileShape } from '../../src/engine/profile.ts';
import { loadModel } from '../../src/index.ts';
import { encodeProfile } from '../../src/plan/profile.ts';
import { kvasir } from '../support/command.ts';
import { writeTempModel } from '../support/gguf-writer.ts';
import { matrix } from '../support/matrix.ts';
import { measuredContent } from '../support/profile.ts';
import { tinyModel } from '../support/tiny-model.ts';

let model: string;
let text: string;
/** Contains the model as org/tiny:Q8_0. */
let hubCache: string;

beforeAll(async () => {
  model = await writeTempModel(tinyModel({ endless: true, tied: false, headDim: 32, context: 2048 }));
  text = join(model, '..', 'text.txt');
  writeFileSync(text, 'Odin carried the mead of poetry home in the shape of an eagle. '.repeat(20));
  hubCache = await mkdtemp(join(tmpdir(), 'kvasir-hub-'));
  const snapshot = join(hubCache, 'models--org--tiny', 'snapshots', 'a'.repeat(40));
  await mkdir(snapshot, { recursive: true });
  await copyFile(model, join(snapshot, 'tiny-Q8_0.gguf'));
});

const greedy = ['--temperature', '0', '--max-tokens', '12'];
/** Starts fastest: nothing is compiled, and no GPU is looked for. */
const js = ['--device', 'js'];

describe('kvasir run', () => {
  it('prints the same text as the library, and statistics', async () => {
    await using loaded = await loadModel(model, { kv: 'tq3' });
    const messages = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'Who was Kvasir?' },
    ];
    const { text } = await loaded.complete(messages, { temperature: 0, maxTokens: 12 });
    const args = ['run', model, 'Who was Kvasir?', '--system', 'Be brief.', '--kv', 'tq3', '--stats', ...greedy];
    const { status, stdout, stderr } = await kvasir(args);
    expect([status, stdout.trimEnd()]).toEqual([0, text.trimEnd()]);
    expect(stderr).toMatch(
      /prompt \d+ tokens \(0 reused\).*\n12 tokens at .*length, seed \d+\ncache: tq3, 3\.\d+ bits per value\n.* kept for later prompts, of at most .*\n.* in all on (js|wasm)/,
    );
  });

  it('--json prints only the result on stdout; the prompt may come from stdin', async () => {
    const { stdout } = await kvasir(['run', model, '--raw', '--json', '--seed', '7', ...js, ...greedy], {
      input: 'Once upon',
    });
    const result = JSON.parse(stdout);
    expect(result).toMatchObject({
      finish: 'length',
      seed: 7,
      preset: 'balanced',
      kv: 'tq4',
      device: 'js',
      usage: { promptTokens: 9, reusedTokens: 0, completionTokens: 12 },
    });
    expect(result.ids).toHaveLength(12);
    expect(result.memory.total).toBeGreaterThan(result.memory.weights);
    expect(result.stats).toMatchObject({ idleSequences: 1, running: 0, waiting: 0, preemptions: 0 });
  });

  it('uses the plan that the profile next to the model recommends, or another preset', async () => {
    const path = join(await mkdtemp(join(tmpdir(), 'kvasir-model-')), 'm.gguf');
    await copyFile(model, path);
    const file = await openModelFile(path);
    await file.gguf.close();
    const content = measuredContent({ fingerprint: await modelFingerprint(file), shape: profileShape(file) });
    await writeFile(path.replace('.gguf', '.kvprofile'), await encodeProfile(content));
    const run = (...flags: string[]) => kvasir(['run', path, 'Once', '--raw', '--stats', ...js, ...greedy, ...flags]);
    expect((await run()).stderr).toMatch(
      /^cache: balanced: kivi2g32, 3\.\d\d bits per value, expected divergence \.0125 nats per token \(profile\)$/m,
    );
    expect((await run('--quality', 'safe')).stderr).toMatch(/^cache: safe: q8_0, 8\.56 bits per value$/m);
    const refused = await run('--quality', 'safe', '--kv', 'tq4');
    expect([refused.status, refused.stderr]).toEqual([
      1,
      'kvasir: --kv tq4 and --quality safe both choose the codec of the cache. ' +
        'Drop --quality safe to use this codec, or --kv tq4 to use the preset.\n',
    ]);
  });

  it('finds a cached model by its hub name', async () => {
    const { stdout, stderr } = await kvasir(['run', 'org/tiny:q8_0', 'Once', '--raw', '--json', ...js, ...greedy], {
      hubCache,
    });
    expect(stderr).not.toMatch(/kvasir:/);
    expect(JSON.parse(stdout).ids).toHaveLength(12);
  });

  it('stops at Ctrl-C and keeps the text so far', async () => {
    const { status, stdout } = await kvasir(['run', model, 'hello', '--temperature', '0', '--max-tokens', '1500'], {
      interruptWhen: ({ stdout }) => stdout.length > 3,
    });
    expect(status).toBe(130);
    expect(stdout.length).toBeGreaterThan(3);
  });

  const MISTAKES: [string, string[], RegExp][] = [
    ['a missing file', ['run', './none.gguf', 'hi'], /no file '.\/none.gguf'/],
    ['a model that is not downloaded', ['run', 'org/repo:Q4_K_M', 'hi'], /run kvasir pull org\/repo:Q4_K_M/],
    ['an unknown codec', ['run', 'MODEL', 'hi', '--kv', 'tq9'], /"tq9" is not a codec/],
    ['an unknown device', ['run', 'MODEL', 'hi', '--device', 'gpu'], /Unknown device "gpu"/],
    ['a prompt that is too long', ['run', 'MODEL', 'hi', '--context', '8', ...js], /leaves no room in a context of 8/],
    ['too little memory', ['run', 'MODEL', 'hi', '--memory', '1kB', ...js], /This needs .* smaller model/],
    ['an empty prompt', ['run', 'MODEL'], /prompt from stdin is empty/],
    ['an invalid number', ['run', 'MODEL', 'hi', '--temperature', 'hot'], /"hot" is not a number/],
    ['an invalid overflow', ['run', 'MODEL', 'hi', '--overflow', 'sink'], /error or slide/],
    [
      'an unknown eviction policy',
      ['run', 'MODEL', 'hi', '--eviction', 'lfru'],
      /Unknown eviction policy "lfru"\. Did you mean/,
    ],
  ];
  const REPRESENTATIVES = {
    'a missing file': 'before the model is opened',
    'a prompt that is too long': 'after it is loaded',
    'too little memory': 'while it is loaded',
    'an invalid number': 'while options are parsed',
  };
  it.each(matrix(MISTAKES, REPRESENTATIVES, ([name]) => name))('reports in one line: %s', async (_, args, message) => {
    const { status, stderr, stdout } = await kvasir(args.map(arg => (arg === 'MODEL' ? model : arg)));
    expect([status, stdout]).toEqual([1, '']);
    expect(stderr).toMatch(message);
    expect(
      stderr
        .trimEnd()
        .split('\n')
        .filter(line => line.startsWith('kvasir: ')),
    ).toHaveLength(1);
    expect(stderr).not.toMatch(/\n {4}at /);
  });
});

describe('kvasir chat', () => {
  it('keeps the cache between turns and runs commands', async () => {
    const input = 'hello\nand?\n/stats\n/reset\n/stats\n/nonsense\n/exit\nnever read\n';
    const { status, stdout } = await kvasir(['chat', model, ...js, ...greedy], { input });
    expect(status).toBe(0);
    expect(stdout).toMatch(/cache: \d+ of 2,048 tokens, .*\nprompt \d+ tokens \(\d+ reused\)/);
    expect(stdout).toMatch(/Conversation cleared\.\ncache: 0 of 2,048 tokens, 0 B/);
    expect(stdout).toMatch(/Unknown command \/nonsense\.\n\/stats/);
  });

  it('Ctrl-C stops an answer, not the chat', async () => {
    const { status, stdout } = await kvasir(['chat', model, ...js, '--temperature', '0', '--max-tokens', '1500'], {
      input: 'hello\n/stats\n',
      interruptWhen: ({ stdout }) => stdout.length > 3,
    });
    expect(status).toBe(0);
    expect(stdout).toMatch(/ \(stopped\)\ncache: /);
  });
});

describe('kvasir inspect', () => {
  it('shows the parts of a model', async () => {
    const { stdout } = await kvasir(['inspect', model, '--tensors', '--context', '4k']);
    expect(stdout).toMatch(/tiny llama \(llama\), [\d,]+ parameters/);
    expect(stdout).toMatch(/4 query heads, 2 KV heads, head dimension 32/);
    expect(stdout).toMatch(/F32 +21 /);
    expect(stdout).toMatch(/sequence of 4,096 tokens/);
    expect(stdout).toMatch(/blk\.1\.ffn_down\.weight +F32 +128 x 64/);
  });

  it('--json prints everything', async () => {
    const found = JSON.parse((await kvasir(['inspect', model, '--json', '--kv', 'tq4,f16'])).stdout);
    expect(found.config).toMatchObject({ architecture: 'llama', layers: 2, headDim: 32 });
    expect(found.tokenizer).toMatchObject({ kind: 'gpt2', vocab: 256, ends: [] });
    expect(found.memory.map((row: { spec: string }) => row.spec)).toEqual(['tq4', 'f16']);
    expect(found.parameters * 4).toBe(found.types[0].bytes);
  });
});

it('kvasir doctor reports the devices and models of this machine', async () => {
  const found = JSON.parse((await kvasir(['doctor', '--json'], { hubCache })).stdout);
  expect(found.node).toBe(process.version);
  expect(found.wasm.simd).toBe(true);
  // Also webgpu if there is an adapter.
  const devices = found.devices.map(({ name }: { name: string }) => name);
  expect(devices.filter((name: string) => name !== 'webgpu')).toEqual(['wasm', 'js']);
  const models = [{ name: 'org/tiny:Q8_0', bytes: statSync(model).size }];
  expect(found.cache).toEqual({ folder: hubCache, models });
  expect((await kvasir(['doctor'])).stdout).toMatch(/wasm +SIMD yes[\s\S]*no models yet/);
});

describe('kvasir eval', () => {
  const rows = ['--context', '192', '--from', '160', '--chunks', '1', '--batch', '64', '--device', 'wasm'];

  it('prints rows and writes a plot', async () => {
    const svg = join(model, '..', 'plot.svg');
    const args = ['eval', model, '--text', text, '--kv', 'tq4,tq2', '--json', '--out', svg, ...rows];
    const found = JSON.parse((await kvasir(args)).stdout);
    expect(found.map((row: { kv: string }) => row.kv)).toEqual(['f16', 'tq4', 'tq2']);
    expect(found[0]).toMatchObject({ kld: 0, top1: 1, tokens: 31 });
    expect(found[2].kld).toBeGreaterThan(found[1].kld);
    expect(readFileSync(svg, 'utf8')).toMatch(/^<svg[\s\S]*tq2<\/text>[\s\S]*<\/svg>\n$/);
    const { stdout } = await kvasir(['eval', model, '--text', text, '--kv', 'tq2', ...rows]);
    expect(stdout).toMatch(/tq2 +2\.[\d]+ +[\d.e-]+ +[\d.]+% +[\d.]+ +31\n/);
  });

  it('prints finished rows at Ctrl-C', async () => {
    const args = [
      'eval',
      model,
      '--text',
      text,
      '--kv',
      'tq4,tq3,tq2',
      '--json',
      '--context',
      '600',
      '--batch',
      '16',
      ...js,
    ];
    const { status, stdout, stderr } = await kvasir(args, {
      interruptWhen: ({ stderr }) => stderr.includes('eval'),
    });
    expect(status).toBe(130);
    expect(stderr).toMatch(/stopped/);
    expect(JSON.parse(stdout)).toEqual([]);
  });

  it.each([
    [['--task', 'gsm8k', '--text', 'a.txt'], '--text does not apply to the task gsm8k'],
    [['--task', 'ruler-words', '--data', 'a.jsonl'], '--data does not apply to the task ruler-words'],
    [['--task', 'hellaswag', '--samples', '3'], '--samples does not apply to the task hellaswag'],
    [['--task', 'needle', '--limit', '3'], '--limit does not apply to the task needle'],
    [['--text', 'a.txt', '--run-code'], '--run-code does not apply to the task divergence'],
  ])('refuses %j', async (flags, message) => {
    const { status, stderr } = await kvasir(['eval', model, ...flags]);
    expect(status).toBe(1);
    expect(stderr).toBe(`kvasir: ${message}. \`kvasir help eval\` lists what does.\n`);
  });

  it('checks before an evaluation that its files can be written', async () => {
    const missing = join(model, '..', 'missing', 'plot.svg');
    const { stdout, stderr } = await kvasir(['eval', model, '--text', text, '--out', missing, ...rows]);
    expect([stdout, stderr]).toEqual(['', `kvasir: ${missing} cannot be written (ENOENT). Check --out.\n`]);
  });

  it('reports a missing or short text', async () => {
    const missing = await kvasir(['eval', model, '--text', './none.txt']);
    expect(missing).toMatchObject({ status: 1, stderr: expect.stringMatching(/none.txt cannot be read \(ENOENT\)/) });
    const short = await kvasir(['eval', model, '--text', text, '--context', '2k', ...js]);
    expect(short.stderr).toMatch(/has 1260 tokens: 0 rows of 2048/);
    const skipped = await kvasir(['eval', model, '--text', text, '--skip', '-1', ...js]);
    expect(skipped.stderr).toMatch(/--skip must be/);
  });
});
