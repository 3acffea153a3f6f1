import { expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { plantKeyBias, tinyModel } from '../../test/support/tiny-model.ts';
import { openModel } from './input.ts';
import { readKeyBias } from './key-bias.ts';

const read = async (spec: ReturnType<typeof tinyModel>, layers: number) => {
  const { gguf } = await openModel(new Blob([writeGguf(spec)]));
  return readKeyBias(gguf, layers);
};

it('is the norm of every layer', async () => {
  const bias = await read(plantKeyBias(tinyModel({ architecture: 'qwen2', layers: 3 }), 1, 100), 3);
  // 2 KV heads of 16 dims.
  expect(bias).toMatchObject({ isLarge: true, largest: { layer: 1, norm: expect.closeTo(100 * Math.sqrt(32), 3) } });
  expect(bias!.norms).toHaveLength(3);
  expect(bias!.norms).toContain(bias!.median);
});

it('is not large if the layers are alike', async () => {
  expect(await read(tinyModel({ architecture: 'qwen2', layers: 3 }), 3)).toMatchObject({ isLarge: false });
});

it('is undefined without biases', async () => {
  expect(await read(tinyModel(), 2)).toBeUndefined();
});
