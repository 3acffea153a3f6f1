/** Opens llama.cpp through node-llama-cpp with the settings of all benches: no GPU, fixed threads, f16 cache by default. */
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

interface ContextOptions {
  modelPath: string;
  flash: boolean;
  threads: number;
  /** Max tokens per sequence. */
  contextSize: number;
  sequences: number;
  /** GGML type of keys and values. */
  kv: string;
}

export async function openSequences({ modelPath, flash, threads, contextSize, sequences, kv }: ContextOptions) {
  const llama = await getLlama({
    gpu: false,
    build: 'never',
    skipDownload: true,
    maxThreads: threads,
    logLevel: LlamaLogLevel.error,
  });
  const model = await llama.loadModel({ modelPath });
  const context = await model.createContext({
    contextSize,
    sequences,
    batchSize: 512,
    flashAttention: flash,
    threads: { ideal: threads, min: threads },
    experimentalKvCacheKeyType: kv as 'F16',
    experimentalKvCacheValueType: kv as 'F16',
    ignoreMemorySafetyChecks: true,
    failedCreationRemedy: false,
  });
  return Array.from({ length: sequences }, () => context.getSequence());
}

export async function openSequence(modelPath: string, flash: string, threads: number, contextSize: number) {
  const setting = { flash: flash === 'on', sequences: 1, kv: 'F16' };
  const [sequence] = await openSequences({ modelPath, threads, contextSize, ...setting });
  return sequence;
}
