import { expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { quantize } from '../../test/support/quantize.ts';
import { plantKeyBias, tinyModel } from '../../test/support/tiny-model.ts';
import { readConfig } from './config.ts';
import { openModel } from './input.ts';
import { readKeyBias } from './key-bias.ts';

const read = async (spec: ReturnType<typeof tinyModel>) => {
  const { gguf } = await openModel(new Blob([writeGguf(spec)]));
  return readKeyBias(gguf, readConfig(gguf));
};

it('is the norm of every layer', async () => {
  const bias = await read(plantKeyBias(tinyModel({ architecture: 'qwen2', layers: 3 }), 1, 100));
  // 2 KV heads of 16 dims.
  expect(bias).toMatchObject({ isLarge: true, largest: { layer: 1, norm: expect.closeTo(100 * Math.sqrt(32), 3) } });
  expect(bias!.norms).toHaveLength(3);
  expect(bias!.norms).toContain(bias!.median);
});

it('is not large if the layers are alike', async () => {
  expect(await read(tinyModel({ architecture: 'qwen2', layers: 3 }))).toMatchObject({ isLarge: false });
});

it('is part of a fused bias', async () => {
  const { metadata, tensors } = tinyModel({ bias: true, fusedQkv: true });
  // 4 query heads and 2 KV heads of 16 dims: the keys are in the middle.
  const bias = Float32Array.from({ length: 128 }, (_, i) => (i >= 64 && i < 96 ? 3 : 100));
  const planted = tensors.map(tensor =>
    tensor.name.endsWith('attn_qkv.bias') ? { ...tensor, data: quantize('F32', bias) } : tensor,
  );
  const found = await read({ metadata, tensors: planted });
  expect(found!.norms).toEqual([0, 1].map(() => expect.closeTo(3 * Math.sqrt(32), 3)));
});

it('is undefined without biases', async () => {
  expect(await read(tinyModel())).toBeUndefined();
});
