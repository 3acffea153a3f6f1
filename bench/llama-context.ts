/** Opens llama.cpp through node-llama-cpp with the settings of all benches: f16 cache, no GPU, fixed threads. */
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
