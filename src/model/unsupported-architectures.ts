/** Why models of well-known architectures do not run. Names are those of GGUF files. */
const REASONS: readonly [reason: string, names: string][] = [
  [
    'it has recurrent layers (state spaces, linear attention or convolutions), whose state is no KV cache',
    'mamba mamba2 jamba falcon-h1 granitehybrid nemotron_h nemotron_h_moe plamo2 qwen3next qwen35 qwen35moe lfm2 lfm2moe ' +
      'bailingmoe3 kimi-linear kimi-k3 minimax-01 rwkv6 rwkv6qwen2 rwkv7 arwkv7',
  ],
  ['it has multi-head latent attention', 'deepseek2 deepseek2-ocr deepseek32 dots3note glm-dsa minicpm3 mistral4 plm'],
  ['its attention reads only tokens that another network chooses', 'deepseek4 minimax-m3'],
  ['its attention is in chunks: a token sees only those of its own chunk', 'llama4'],
  ['the output of its attention is multiplied by a gate', 'afmoe laguna muse-glimmer step35'],
  ['its layers have different heads or head dimensions', 'deci gemma4 mimo2 openelm'],
  ['it has embeddings per layer, and layers that share keys and values', 'gemma3n'],
  ['its layers run several times', 'nanbeige'],
  ['its mixture of experts is not implemented', 'arctic grok grovemoe smallthinker'],
  [
    'its layer norms, which subtract a mean, are not implemented',
    'bloom codeshell cohere2 cohere2moe command-r dbrx falcon gpt2 gptj gptneox jais jais2 mpt nemotron olmo orion phi2 ' +
      'phimoe refact stablelm starcoder starcoder2',
  ],
  ['its feed-forward networks have another activation, or no gate', 'apertus arcee'],
  ['its weights have three values and norms between them', 'bitnet'],
  ['it is an early model that few people use today', 'baichuan plamo qwen talkie'],
  ['its adapters are not implemented', 'graniteswitch'],
  ['it is new, and not implemented yet', 'granite_swa plamo3'],
  [
    'it turns text into vectors and generates none',
    'bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding llama-embed t5encoder',
  ],
  ['it has an encoder and a decoder', 't5 whisper'],
  ['it generates by diffusion, not token by token', 'dream llada llada-moe rnd1'],
  ['it generates sound, not text', 'wavtokenizer-dec qwen3tts pockettts'],
  ['it reads or generates images, and is of little use without them', 'chameleon cogvlm hunyuan_vl paddleocr'],
  ['it is the part of a model that reads images or sound: use the file of the language model', 'clip'],
  ['it only drafts tokens for another model', 'eagle3 dflash gemma4-assistant'],
];

/** The reason of each architecture. */
export const unsupportedArchitectures: ReadonlyMap<string, string> = new Map(
  REASONS.flatMap(([reason, names]) => names.split(' ').map(name => [name, reason] as const)),
);
