/** llama.cpp's tokenizer, as an oracle. */
export type LlamaEncode = (text: string, special: boolean) => ArrayLike<number>;
/** Loads the vocabulary of a GGUF file. */
export type LlamaTokenizerLoader = (modelPath: string) => Promise<LlamaEncode>;

/** Undefined if llama.cpp's package is not installed, which is an error in CI. */
export async function findLlamaTokenizers(): Promise<LlamaTokenizerLoader | undefined> {
  const library = await import('node-llama-cpp').catch(error => {
    if (process.env.CI) throw error;
  });
  if (!library) return undefined;
  const { getLlama, LlamaLogLevel } = library;
  const llama = await getLlama({ build: 'never', skipDownload: true, gpu: false, logLevel: LlamaLogLevel.fatal });
  return async modelPath => {
    const model = await llama.loadModel({ modelPath, vocabOnly: true });
    return (text, special) => model.tokenize(text, special);
  };
}

export function firstDifference(a: ArrayLike<number>, b: ArrayLike<number>): number | undefined {
  for (let i = 0; i < Math.max(a.length, b.length); i++) if (a[i] !== b[i]) return i;
  return undefined;
}
