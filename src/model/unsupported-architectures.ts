/** Why models of well-known architectures do not run. Names are those of GGUF files. */
const REASONS: readonly [reason: string, names: string][] = [
  [
    'it has recurrent layers (state spaces, linear attention or convolutions), whose state is no KV cache',
    'mamba mamba2 jamba falcon-h1 granitehybrid nemotron_h nemotron_h_moe plamo2 qwen3next qwen35 qwen35moe lfm2 lfm2moe ' +
      'kimi-linear minimax-01 rwkv6 rwkv6qwen2 rwkv7 arwkv7',
  ],
  ['it has multi-head latent attention', 'deepseek2 deepseek2-ocr deepseek32 glm-dsa minicpm3 plm'],
  ['it has embeddings per layer, and layers that share keys and values', 'gemma3n gemma4'],
  [
    'its mixture of experts is not implemented',
    'arctic afmoe bailingmoe bailingmoe2 dbrx deepseek dots1 ernie4_5-moe exaone-moe glm4moe grok hunyuan-moe ' +
      'llama4 mimo2 minimax-m2 phimoe',
  ],
  [
    'its layer norms, which subtract a mean, are not implemented',
    'bloom cohere2 command-r falcon gpt2 gptj gptneox mpt nemotron olmo orion phi2 refact stablelm starcoder starcoder2',
  ],
  [
    'it turns text into vectors and generates none',
    'bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding llama-embed t5encoder',
  ],
  ['it has an encoder and a decoder', 't5 whisper'],
  ['it generates by diffusion, not token by token', 'dream llada llada-moe rnd1'],
  ['it generates sound, not text', 'wavtokenizer-dec qwen3tts pockettts'],
  ['it is the part of a model that reads images or sound: use the file of the language model', 'clip'],
  ['it only drafts tokens for another model', 'eagle3 dflash gemma4-assistant'],
];

/** The reason of each architecture. */
export const unsupportedArchitectures: ReadonlyMap<string, string> = new Map(
  REASONS.flatMap(([reason, names]) => names.split(' ').map(name => [name, reason] as const)),
);
