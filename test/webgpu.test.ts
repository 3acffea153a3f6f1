import { expect, it } from 'vitest';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { far, runAttention } from './attention.ts';

it.each(['f16','tq4u','tq4'])('%s', async spec => {
  const device = await createWebGpuDevice({ headDim: 32, heads: 4, kvHeads: 2, pageTokens: 16 });
  const setting = { spec, headDim: 32, heads: 4, kvHeads: 2, pageTokens: 16 };
  const chunks = [3, 13, 1, 40, 30, 20];
  const js = await runAttention(createJsDevice(), setting, chunks, 2);
  const t0 = performance.now();
  const gpu = await runAttention(device, setting, chunks, 2);
  console.log(spec, performance.now() - t0);
  
  let different = 0; let total = 0;
  js.leaves.forEach((l, i) => l.forEach((b, j) => { total++; if (b !== gpu.leaves[i][j]) different++; }));
  console.log('leaf bytes different', different, total);
  expect(Math.max(...js.outputs.map((o, i) => far(gpu.outputs[i], o)))).toBeLessThan(1e-3);
  await device.dispose();
});
