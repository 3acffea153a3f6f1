/** Runs inside the browser: test cases that the browser tests call by name. */
import { type LoadOptions, loadModel } from '../../src/index.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { findAdapter } from '../../src/kernel/webgpu/adapter.ts';
import { createWebGpuDevice } from '../../src/kernel/webgpu/device.ts';
import {
  deleteStored,
  listStored,
  type RemoteService,
  startWorker,
  type WorkerOptions,
} from '../../src/worker/index.ts';
import { type AttentionCase, relativeError, runAttention } from '../support/attention.ts';
import type { StoreAnswer } from './remote-store.ts';

export interface GenerateCase extends LoadOptions {
  path: string;
  prompt: string;
  maxTokens: number;
}

export interface AskCase extends Omit<WorkerOptions, 'worker'> {
  path: string;
  /** Load it as a File, as from drag and drop; `picked`: the one of the page's file input. */
  asFile?: boolean | 'picked';
  /** Asked in one slot, one after the other. */
  questions: readonly string[];
  maxTokens: number;
  /** Where the slot is restored from before, and saved to after. */
  restore?: string;
  save?: string;
}

let storeWorker: Worker | undefined;
let lastStoreCall: Promise<unknown> = Promise.resolve();

const GREEDY = { temperature: 0 } as const;

const describeError = (error: unknown) => {
  const { name, message } = error as Error;
  return { name, message };
};

async function modelOf(path: string, asFile: AskCase['asFile']): Promise<string | File> {
  if (asFile === 'picked') return document.querySelector('input')!.files![0];
  return asFile ? new File([await (await fetch(path)).blob()], 'dropped.gguf', { lastModified: 0 }) : path;
}

async function ask(service: RemoteService, { questions, maxTokens, restore, save }: AskCase) {
  if (restore) await service.restoreSlot(0, restore);
  const answers: { ids: number[]; text: string; reused: number }[] = [];
  for (const content of questions) {
    const options = { ...GREEDY, maxTokens, slot: 0 };
    const { ids, text, usage } = await service.answer([{ role: 'user', content }], options).result();
    answers.push({ ids, text, reused: usage.reusedTokens });
  }
  if (save) await service.saveSlot(0, save);
  return answers;
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

  /** The continuation of a prompt by a model that the test server serves, without a Worker. */
  async generate({ path, prompt, maxTokens, ...options }: GenerateCase) {
    const model = await loadModel(path, options);
    const { ids, text } = await model.complete(prompt, { ...GREEDY, maxTokens, ignoreEos: true });
    const { device } = model;
    await model.dispose();
    return { ids, text, device };
  },

  /** Answers of a Worker, or the error that it failed with. */
  async ask(asked: AskCase) {
    const { path, asFile, questions: _, maxTokens: __, restore: ___, save: ____, ...options } = asked;
    let fetched = 0;
    const onProgress = ({ phase, done }: { phase: string; done: number }) => {
      if (phase === 'fetch') fetched = done;
    };
    try {
      const service = await startWorker(await modelOf(path, asFile), { ...options, onProgress });
      const answers = await ask(service, asked);
      await service.close();
      return { answers, fetched, device: service.info.device };
    } catch (error) {
      return { error: describeError(error) };
    }
  },

  /** An answer during which the test takes the GPU away, one after that, and the end of the service. */
  async loseGpu({ path, questions: _, maxTokens: __, ...options }: AskCase) {
    const service = await startWorker(path, options);
    const answer = async () => {
      const stream = service.answer([{ role: 'user', content: 'Tell me all.' }], { ...GREEDY, maxTokens: 400 });
      for await (const _ of stream) Object.assign(globalThis, { isAnswering: true });
      return { name: 'none', message: 'The answer is complete.' };
    };
    const during = await answer().catch(describeError);
    const after = await answer().catch(describeError);
    const ended = describeError(await service.ended);
    await service.close();
    return { during, after, ended };
  },

  /** A prompt that is stopped as soon as some of it has been read: how much was read, and of how much. */
  async stop({ path, questions, maxTokens, ...options }: AskCase) {
    const service = await startWorker(path, options);
    const controller = new AbortController();
    const read = { done: 0, total: 0 };
    const onPrefill = (progress: typeof read) => {
      Object.assign(read, progress);
      if (progress.done > 0) controller.abort();
    };
    const messages = [{ role: 'user', content: questions[0] }];
    const stream = service.answer(messages, { ...GREEDY, maxTokens, signal: controller.signal, onPrefill });
    const { finish } = await stream.result();
    await service.close();
    return { ...read, finish };
  },

  /** The same model is loaded by two Workers at the same time. */
  twice: (asked: AskCase) => Promise.all([cases.ask(asked), cases.ask(asked)]),

  async abort({ path, questions: _, maxTokens: __, ...options }: AskCase) {
    const controller = new AbortController();
    const onProgress = () => controller.abort();
    return startWorker(path, { ...options, signal: controller.signal, onProgress }).then(
      () => 'loaded',
      error => error.name,
    );
  },

  /** Calls the Worker with stores (store-worker.ts). `terminateStore` ends it as a crash would. */
  callStore(method: string, args: unknown): Promise<StoreAnswer> {
    storeWorker ??= new Worker('/store-worker.js', { type: 'module' });
    const worker = storeWorker;
    const answer = lastStoreCall.then(
      () =>
        new Promise<StoreAnswer>(resolve => {
          worker.addEventListener('message', ({ data }) => resolve(data), { once: true });
          worker.postMessage({ method, args });
        }),
    );
    lastStoreCall = answer;
    return answer;
  },
  terminateStore() {
    storeWorker?.terminate();
    storeWorker = undefined;
  },

  stored: () => listStored(),
  deleteStored: (path?: string) => deleteStored(path),
};

Object.assign(globalThis, { cases });
