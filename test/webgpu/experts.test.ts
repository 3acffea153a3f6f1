/** Mixtures of experts on the webgpu device, against the js device. */
import { expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { relativeError } from '../support/attention.ts';
import { type ExpertShape, loadExperts } from '../support/experts.ts';
import { describeGpu, openWebGpu } from './gpu.ts';

const SHAPE: ExpertShape = { type: 'Q4_0', count: 5, used: 2, width: 64, inner: 96, bias: true };
const ROWS = 19;

describeGpu('experts', () => {
  it.each<[string, Partial<ExpertShape>, tolerance: number]>([
    ['int8 activations', {}, 0.02],
    [
      'the sigmoid of one logit',
      { type: 'F16', rule: { scores: 'sigmoid', normalized: false }, count: 1, used: 1 },
      2e-5,
    ],
    [
      'float weights, a softmax over all experts, no biases',
      { type: 'F16', rule: { normalized: false }, bias: false },
      2e-5,
    ],
    ['sigmoids of biased choices', { type: 'F16', rule: { scores: 'sigmoid', scale: 2.5 }, selectionBias: true }, 2e-5],
    ['a softmax of biased choices', { type: 'F16', selectionBias: true }, 2e-5],
    [
      'the best groups of many',
      {
        type: 'F16',
        count: 144,
        used: 5,
        rule: { scores: 'sigmoid', groups: { count: 72, used: 9 } },
        selectionBias: true,
      },
      2e-5,
    ],
    [
      'the best groups, without biases',
      { type: 'F16', count: 12, used: 3, rule: { normalized: false, groups: { count: 3, used: 2 } } },
      2e-5,
    ],
  ])('like js, and the same bits alone and in a batch: %s', async (_, options, tolerance) => {
    const shape = { ...SHAPE, ...options };
    const run = await loadExperts(await openWebGpu(), shape);
    const [rows, expected] = [await run(0, ROWS), await (await loadExperts(createJsDevice(), shape))(0, ROWS)];
    for (const [r, row] of rows.entries()) expect(relativeError(row, expected[r])).toBeLessThan(tolerance);
    expect(await run(5, 6)).toEqual([rows[5]]);
    expect(await run(16, 19)).toEqual(rows.slice(16));
  });

  it('in several pieces, because bindings are small', async () => {
    const whole = await loadExperts(await openWebGpu(), SHAPE);
    // 32 rows of Q4_0 have 2 vectors of 16 bytes each.
    const pieces = await loadExperts(await openWebGpu({ limits: { binding: 4096 } }), SHAPE);
    expect(await pieces(0, 2)).toEqual(await whole(0, 2));
  });
});
