/** Runs inside the browser: WebGPU test cases that browser.test.ts calls by name. */
import { loadModel } from '../../src/index.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { findAdapter } from '../../src/kernel/webgpu/adapter.ts';
import { createWebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import { type AttentionCase, relativeError, runAttention } from '../attention.ts';

export interface GenerateCase {
  path: string;
  device: 'auto' | 'wasm' | 'webgpu';
  threads?: number;
  prompt: string;
  kv: string;
  maxTokens: number;
  pageTokens: number;
}

export const cases = {
  async adapter() {
    const found = await findAdapter();
    return typeof found === 'string' ? found : found.info;
  },

  /** The largest relative error of the webgpu device against js, and how many sealed bytes differ. */
  async attention(setting: AttentionCase & { headDim: number; heads: number; kvHeads: number; pageTokens: number }) {
    const device = await createWebGpuDevice(setting);
    const chunks = [3, 29, 1, 80];
    const js = await runAttention(createJsDevice(), setting, chunks, { lastRows: 2 });
    const fast = await runAttention(device, setting, chunks, { lastRows: 2, leaves: js.leaves });
    await device.dispose();
    const different = js.leaves.map((leaf, i) => leaf.filter((byte, j) => byte !== fast.leaves[i][j]).length);
    return {
      error: Math.max(...js.outputs.map((output, i) => relativeError(fast.outputs[i], output))),
      different: different.reduce((a, b) => a + b, 0),
    };
  },

  /** The continuation of a prompt by a model that the test server serves. */
  async generate({ path, prompt, maxTokens, ...options }: GenerateCase) {
    const model = await loadModel(path, options);
    const { ids, text } = await model.complete(prompt, { temperature: 0, maxTokens, ignoreEos: true });
    const { device } = model;
    await model.dispose();
    return { ids, text, device };
  },
};

Object.assign(globalThis, { cases });
