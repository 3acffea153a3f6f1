/** Sampling on the webgpu device: the same tokens as on the CPU, from the same random numbers. */
import { expect, it } from 'vitest';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { createSampler } from '../../src/engine/sample.ts';
import { dequantize } from '../../src/kernel/weights/dequantize.ts';
import { matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

describeGpu('sampling', () => {
  const vocab = 1000;
  // Rounded, so that many logits are equal.
  const logits = normals(createRandom(9), 3 * vocab).map((x, i) => (i % 3 === 0 ? Math.round(2 * x) / 2 : 2 * x));
  const OPTIONS = [
    { temperature: 0 },
    { temperature: 0.8, topK: 1 },
    { temperature: 1 },
    { temperature: 0.7, minP: 0.05 },
    { temperature: 1.3, topK: 40 },
    { temperature: 0.9, topP: 0.8 },
    { temperature: 1.1, topK: 100, topP: 0.7, minP: 0.01 },
  ];
  const REPRESENTATIVES = { 0: 'the largest logit', 1: 'all logits', 1.1: 'every limit at once' };
  it.each(matrix(OPTIONS, REPRESENTATIVES, ({ temperature }) => `${temperature}`))(
    'samples the same tokens as the sampler on the CPU: %o',
    async options => {
      const device = await openWebGpu();
      const tensor = device.createTensor(3, vocab);
      device.writeRows(tensor, 0, logits);
      const wanted: number[] = [];
      const found: (number | undefined)[] = [];
      for (let row = 0; row < 3; row++) {
        const [first, second] = [createSampler({ ...options, seed: row }), createSampler({ ...options, seed: row })];
        for (let n = 0; n < 4; n++) {
          wanted.push(first.sample(logits.slice(row * vocab, (row + 1) * vocab)).id);
          found.push(...(await device.sampleTokens(tensor, [{ ...second.deviceSampling()!, row }]).ids));
        }
      }
      expect(found).toEqual(wanted);
    },
  );

  it('embeds a sampled token by its handle, before the host has read it', async () => {
    const device = await openWebGpu();
    const cols = 64;
    const bytes = randomWeights('Q8_0', vocab * cols, 0.1, seeded(9));
    const table = await device.loadWeights('Q8_0', vocab, cols, async into => into.set(bytes));
    const tensor = device.createTensor(3, vocab);
    device.writeRows(tensor, 0, logits);
    const out = device.createTensor(3, cols);
    const choices = [2, 0].map(row => ({ row, temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 }));
    const before = device.sampleTokens(tensor, choices);
    const { ids, handles } = device.sampleTokens(tensor, choices.slice(1));
    expect(new Set([...before.handles, ...handles]).size).toBe(3);
    device.embed(table, [before.handles[0], 7, handles[0]], out);
    const found = await Promise.all([0, 1, 2].map(row => device.readRows(out, row)));
    const exact = new Float32Array(vocab * cols);
    dequantize('Q8_0', bytes, exact);
    const known = [(await before.ids)[0] ?? Number.NaN, 7, (await ids)[0] ?? Number.NaN];
    expect(known[2]).toBe((await before.ids)[1]);
    expect(found).toEqual(known.map(id => exact.slice(id * cols, (id + 1) * cols)));
  });

  it('gives undefined for a row without finite logits', async () => {
    const device = await openWebGpu();
    const tensor = device.createTensor(3, 300);
    device.writeRows(tensor, 0, new Float32Array(900).fill(1));
    device.writeRows(tensor, 0, new Float32Array(300).fill(Number.NEGATIVE_INFINITY));
    device.writeRows(tensor, 1, Float32Array.of(0, Number.NaN));
    const choices = [0, 1, 2].map(row => ({ row, temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 }));
    expect(await device.sampleTokens(tensor, choices).ids).toEqual([undefined, undefined, 0]);
  });
});
