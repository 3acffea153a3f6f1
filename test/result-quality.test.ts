/** The quality of an answer's cache: how well calibrated codecs fit the text, and the notice if they do not. */
import { describe, expect, it } from 'vitest';
import { learn } from '../src/codec/kv.ts';
import { samplesOf } from '../src/codec/learned.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { openModelFile, planShape } from '../src/engine/engine.ts';
import { profileShape } from '../src/engine/profile.ts';
import { evaluate } from '../src/eval/evaluate.ts';
import { loadModel } from '../src/index.ts';
import type { Profile } from '../src/plan/profile.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { tinyModel } from './support/tiny-model.ts';

const MODEL = new Blob([writeGguf(tinyModel())]);
const TEXT = 'Odin carried the mead of poetry home in the shape of an eagle. ';

/** A profile that was learned from Gaussian vectors of this size. */
async function profileOf(size: number, spec = 'mead2'): Promise<Profile> {
  const file = await openModelFile(MODEL);
  await file.gguf.close();
  const shape = planShape(file);
  const samples = samplesOf(
    normals(createRandom(1), 500 * shape.kvHeads * shape.headDim).map(x => size * x),
    shape,
  );
  const learned = Array(shape.layers).fill(learn(spec, shape, { key: samples, value: samples }));
  return {
    fingerprint: '0'.repeat(64),
    shape: profileShape(file),
    provenance: { samples: 500 },
    learned,
    sensitivities: { mead2: learned.map(() => ({ key: 0.001, value: 0.002 })) },
    measurements: [],
    hash: '',
  } as unknown as Profile;
}

/** The model's vectors are about 1 long per dim. */
const FAMILIAR = await profileOf(3);
const UNFAMILIAR = await profileOf(0.2);
/** The first page is all sinks, and does not count. */
const LOAD = { kv: 'mead2', device: 'js', pageTokens: 16 } as const;
const OPTIONS = { maxTokens: 3, temperature: 0, ignoreEos: true } as const;

describe('result.quality', () => {
  it('compares the sealed pages with the calibration text', async () => {
    await using model = await loadModel(MODEL, { ...LOAD, profile: UNFAMILIAR });
    const { quality } = await model.complete(TEXT.slice(0, 50), OPTIONS);
    expect(quality?.pages).toBe(2);
    expect(quality?.ratio).toBeGreaterThan(2);
    expect(quality?.expected).toBe(model.plan.predicted);
    expect(quality?.estimated).toBeCloseTo(model.plan.predicted! * quality!.ratio, 9);
  });

  it('is undefined before a page is sealed, for codecs that do not search, and for profiles without errors', async () => {
    await using short = await loadModel(MODEL, { ...LOAD, profile: FAMILIAR });
    expect((await short.complete('Odin', OPTIONS)).quality).toBeUndefined();
    await using plain = await loadModel(MODEL, { ...LOAD, kv: 'tq4', profile: FAMILIAR });
    expect((await plain.complete(TEXT, OPTIONS)).quality).toBeUndefined();
    const withoutErrors = ({ 'mead.error': _, ...rest }: Profile['learned'][0]['key']) => rest;
    const learned = UNFAMILIAR.learned.map(({ key, value }) => ({
      key: withoutErrors(key),
      value: withoutErrors(value),
    }));
    await using old = await loadModel(MODEL, { ...LOAD, profile: { ...UNFAMILIAR, learned } });
    expect(await old.complete(TEXT, OPTIONS)).toMatchObject({ quality: undefined, notices: [] });
  });

  it('covers the pages in the cache, also those of earlier turns, until they are removed', async () => {
    await using model = await loadModel(MODEL, { ...LOAD, profile: FAMILIAR });
    await using conversation = model.conversation();
    const pagesOf = async (prompt: string) => (await conversation.generate(prompt, OPTIONS).result()).quality?.pages;
    expect(await pagesOf(TEXT.slice(0, 40))).toBe(1);
    expect(await pagesOf(TEXT.repeat(2).slice(0, 90))).toBe(4);
    expect(await pagesOf(TEXT.slice(0, 35))).toBe(1);
    await conversation.reset();
    expect(await pagesOf('Odin')).toBeUndefined();
  });
});

describe('the notice that a text is unlike the calibration text', () => {
  it('has the command that would help, and appears once per conversation', async () => {
    await using model = await loadModel(MODEL, { ...LOAD, profile: UNFAMILIAR });
    await using conversation = model.conversation();
    const noticesOf = async () => (await conversation.generate(TEXT, OPTIONS).result()).notices;
    expect(await noticesOf()).toEqual([expect.stringContaining('kvasir calibrate MODEL --text FILE')]);
    expect(await noticesOf()).toEqual([]);
    await conversation.reset();
    expect(await noticesOf()).toHaveLength(1);
  });

  it('does not appear on familiar text', async () => {
    await using model = await loadModel(MODEL, { ...LOAD, profile: FAMILIAR });
    const { notices, quality } = await model.complete(TEXT, OPTIONS);
    expect(notices).toEqual([]);
    expect(quality?.ratio).toBeLessThan(1.2);
  });
});

it('evaluation reports the error ratio of codecs that search', async () => {
  const options = { text: TEXT.repeat(8), context: 192, device: 'js', rows: 1 } as const;
  const { rows } = await evaluate(MODEL, { ...options, kv: ['mead2', 'tq4'], profile: UNFAMILIAR });
  const [exact, mead, turbo] = rows.map(({ errorRatio }) => errorRatio);
  expect([exact, turbo]).toEqual([undefined, undefined]);
  expect(mead).toBeGreaterThan(2);
});
