/** llama.cpp through node-llama-cpp, as every bench opens it: f16 cache, no GPU, so many threads. */
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

export async function openSequence(modelPath: string, flash: string, threads: number, contextSize: number) {
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
    batchSize: 512,
    flashAttention: flash === 'on',
    threads: { ideal: threads, min: threads },
    ignoreMemorySafetyChecks: true,
    failedCreationRemedy: false,
  });
  return context.getSequence();
}
