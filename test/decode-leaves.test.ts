/** `model.decodeLeaves`: pages of a text in f16, from the cache or from tiers. */
import { expect, it } from 'vitest';
import { type DecodedLeaf, InputError, type LoadOptions, loadModel, type Vectors } from '../src/index.ts';
import { toF16 } from '../src/kernel/float.ts';
import { createHostStore } from '../src/store/host-store.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { tinyModel } from './support/tiny-model.ts';

const [LAYERS, PAGE] = [2, 16];
const tiny = new Blob([writeGguf(tinyModel({ tied: false, headDim: 32 }))]);
const load = (options: LoadOptions = {}) =>
  loadModel(tiny, { device: 'wasm', kv: 'tq4', pageTokens: PAGE, ...options });
const prompt = Array.from({ length: 75 }, (_, i) => (i * i * 31 + 7) % 256);
const short = { temperature: 0, maxTokens: 1 };

/** Copies: all pages are in one buffer. */
async function collect(leaves: AsyncGenerator<DecodedLeaf>): Promise<{ page: number; values: number[] }[]> {
  const found = [];
  for await (const { page, values } of leaves) found.push({ page, values: [...values] });
  return found;
}

/** The same values as `conversation.decode` has them, [token][kv head][dim] of one layer. */
function f16Page(vectors: Vectors, kvHeads: number, headDim: number, page: number): number[] {
  return [vectors.keys, vectors.values].flatMap(rows =>
    Array.from({ length: kvHeads }, (_, head) =>
      Array.from({ length: PAGE }, (_, token) => {
        const at = ((page * PAGE + token) * kvHeads + head) * headDim;
        return [...rows.subarray(at, at + headDim)].map(toF16);
      }).flat(2),
    ).flat(),
  );
}

it.each(['tq4', 'f16', 'tq2+sink20'])('%s: has what attention sees, sinks included', async kv => {
  await using model = await load({ kv });
  const { kvHeads, headDim } = model.config;
  await using conversation = model.conversation();
  await conversation.generate(prompt, short).result();
  const layers = await Promise.all([0, 1].map(layer => conversation.decode(layer)));
  const pages = await collect(model.decodeLeaves(prompt));
  expect(pages.map(({ page }) => page)).toEqual([0, 1, 2, 3]);
  for (const { page, values } of pages)
    expect(values).toEqual(layers.flatMap(vectors => f16Page(vectors, kvHeads, headDim, page)));
});

it('reads the layers and pages that are asked for, into one buffer', async () => {
  await using model = await load();
  await model.complete(prompt, short);
  const all = await collect(model.decodeLeaves(prompt));
  const some = await collect(model.decodeLeaves(prompt, { layers: [1], pages: [3, 1] }));
  expect(some.map(({ page }) => page)).toEqual([1, 3]);
  for (const { page, values } of some) expect(values).toEqual(all[page].values.slice(all[page].values.length / LAYERS));
  const buffers = new Set();
  for await (const { values } of model.decodeLeaves(prompt)) buffers.add(values.buffer);
  expect(buffers.size).toBe(1);
});

it('finds pages in tiers, and none of another text or tenant', async () => {
  const store = createHostStore({ capacity: 2 ** 20 });
  let expected: Awaited<ReturnType<typeof collect>>;
  {
    await using model = await load({ tiers: [store] });
    await model.complete(prompt, short);
    expected = await collect(model.decodeLeaves(prompt));
  }
  await using model = await load({ tiers: [store] });
  expect(await collect(model.decodeLeaves(prompt, { tenant: 'other' }))).toEqual([]);
  expect(await collect(model.decodeLeaves([9, ...prompt]))).toEqual([]);
  expect(await collect(model.decodeLeaves(prompt))).toEqual(expected);
  expect(model.stats().sharedLeaves).toBe(0);
});

it('releases what it reads when it is left early, and refuses wrong options', async () => {
  await using model = await load();
  await model.complete(prompt, short);
  for await (const { page } of model.decodeLeaves(prompt)) {
    expect(model.stats().sharedLeaves).toBe(4);
    if (page === 1) break;
  }
  expect(model.stats().sharedLeaves).toBe(0);
  expect(() => model.decodeLeaves(prompt, { layers: [-1] })).toThrow(InputError);
  await expect(collect(model.decodeLeaves(prompt, { layers: [2] }))).rejects.toThrow(/from 0 to 1/);
});
