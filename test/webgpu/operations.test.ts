/** Operations of the webgpu device other than attention: fused ones against single ones, small ones against js. */
import { expect, it } from 'vitest';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import type { Activation, Tensor } from '../../src/kernel/device.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { relativeError, runSmallOperations } from '../support/attention.ts';
import { matrix } from '../support/matrix.ts';
import { randomWeights } from '../support/quantize.ts';
import { seeded } from '../support/random.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

const FLOAT = 2e-5;

describeGpu('fused operations', () => {
  it.each(matrix([1, 3, 20], { 3: 'a few rows' }))(
    'give the same bits as one operation at a time: %i rows',
    async rows => {
      const device = await openWebGpu();
      const [cols, outs] = [128, [96, 40, 64]];
      const matrices = await Promise.all(
        outs.map((n, i) => {
          const bytes = randomWeights('Q4_0', n * cols, 0.1, seeded(i));
          return device.loadWeights('Q4_0', n, cols, async into => into.set(bytes));
        }),
      );
      const tensor = (n: number) => device.createTensor(rows, n);
      const readAll = (x: Tensor) => Promise.all(Array.from({ length: rows }, (_, r) => device.readRows(x, r)));
      const x = tensor(cols);
      device.writeRows(x, 0, normals(createRandom(5), rows * cols));
      const weight = device.createTensor(1, cols);
      device.writeRows(weight, 0, normals(createRandom(8), cols));
      const angles = device.createTensor(rows, 32);
      device.writeRows(angles, 0, normals(createRandom(6), rows * 32));
      const run = async (fused: boolean, activation: Activation) => {
        const [a, b, c, g, u, y, h] = [96, 40, 64, 96, 96, 40, cols].map(tensor);
        const norm = async (eps: number) => {
          device.rmsNorm(x, rows, weight, eps, h);
          if (!fused) await device.readRows(h, 0);
        };
        const products = [a, b, c].map((out, i) => ({ weights: matrices[i], out }));
        const gates = [g, u].map(out => ({ weights: matrices[0], out }));
        await norm(1e-5);
        for (const group of fused ? [products] : products.map(one => [one])) device.project(h, rows, group);
        device.rope(a, rows, 32, angles);
        if (!fused) await device.readRows(a, 0);
        device.rope(c, rows, 32, angles);
        await norm(0.1);
        for (const group of fused ? [gates] : gates.map(one => [one])) device.project(h, rows, group);
        device.gate(g, u, rows, activation);
        const last = await device.loadWeights('F32', 40, 96, async into => into.set(new Uint8Array(floats.buffer)));
        device.project(g, rows, [{ weights: last, out: y }]);
        return (await Promise.all([a, b, c, g, y, h].map(readAll))).flat();
      };
      const floats = normals(createRandom(7), 40 * 96);
      for (const activation of ['silu', 'gelu', 'clamped'] as const)
        expect(await run(true, activation)).toEqual(await run(false, activation));
    },
  );
});

describeGpu('RMS norm, RoPE, gates and copies', () => {
  it('agree with js', async () => {
    expect(
      relativeError(await runSmallOperations(await openWebGpu()), await runSmallOperations(createJsDevice())),
    ).toBeLessThan(FLOAT);
  });
});
