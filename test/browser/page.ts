/** What runs inside the browser: the cases of the webgpu tests, called by name from browser.test.ts. */
import { loadModel } from '../../src/index.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { findAdapter } from '../../src/kernel/webgpu/adapter.ts';
import { createWebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import { far, runAttention, type Setting } from '../attention.ts';

export interface Asked {
  path: string;
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

  /** How far the webgpu device is from js, and how many sealed bytes differ. */
  async attention(setting: Setting & { headDim: number; heads: number; kvHeads: number; pageTokens: number }) {
    const device = await createWebGpuDevice(setting);
    const chunks = [3, 29, 1, 80];
    const js = await runAttention(createJsDevice(), setting, chunks, { most: 2 });
    const fast = await runAttention(device, setting, chunks, { most: 2, leaves: js.leaves });
    await device.dispose();
    const different = js.leaves.map((leaf, i) => leaf.filter((byte, j) => byte !== fast.leaves[i][j]).length);
    return {
      far: Math.max(...js.outputs.map((output, i) => far(fast.outputs[i], output))),
      different: different.reduce((a, b) => a + b, 0),
    };
  },

  /** What a model served beside the page says. */
  async generate({ path, prompt, kv, maxTokens, pageTokens }: Asked) {
    const blob = await (await fetch(path)).blob();
    const model = await loadModel(blob, { device: 'webgpu', kv, pageTokens });
    const { ids, text } = await model.complete(prompt, { temperature: 0, maxTokens, ignoreEnd: true });
    await model.dispose();
    return { ids, text };
  },
};

Object.assign(globalThis, { cases });
