/** The squared errors that sealing leaves, on the wasm device against the js device, on random data. */
import { expect, it } from 'vitest';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { createWasmDevice } from '../../src/kernel/wasm/device.ts';
import { expectSameErrors, runAttention } from '../support/attention.ts';

it.each([
  { spec: 'mead2', headDim: 64, heads: 6, kvHeads: 3, pageTokens: 128 },
  { spec: 'mead1/mead4+sink7+recent40', headDim: 80, heads: 2, kvHeads: 2, pageTokens: 32 },
  { spec: 'vec-d4b8', headDim: 64, heads: 2, kvHeads: 1, pageTokens: 128 },
  { spec: 'vec-d2b1-own/vec-d8b10', headDim: 32, heads: 2, kvHeads: 2, pageTokens: 48 },
  { spec: 'mead2/tq4+sink0', headDim: 64, heads: 3, kvHeads: 1, pageTokens: 64 },
  { spec: 'million-d5b6/mead2.5+sink70', headDim: 40, heads: 2, kvHeads: 2, pageTokens: 32 },
])('$spec, $headDim dims, $kvHeads KV heads, pages of $pageTokens', async shape => {
  const device = await createWasmDevice({ ...shape, threads: 2 });
  try {
    const chunks = [2 * shape.pageTokens + 1, shape.pageTokens, 41];
    const [wasm, js] = await Promise.all(
      [device, createJsDevice()].map(one => runAttention(one, shape, chunks, { lastRows: 1 })),
    );
    expect(js.errors.size).toBe(js.leaves.length);
    expectSameErrors(wasm.errors, js.errors);
  } finally {
    await device.dispose();
  }
});
