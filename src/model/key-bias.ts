/** The bias that a model adds to its keys (qwen2). A large one dwarfs what tells tokens apart. */
import { type Gguf, readTensorAsFloat32 } from './gguf.ts';
import type { ModelConfig } from './model-config.ts';

export interface KeyBias {
  /** The norm of the bias, by layer. */
  norms: number[];
  median: number;
  largest: { layer: number; norm: number };
  /** Whether a layer's bias stands out so much that a scale shared across channels must fit it. */
  isLarge: boolean;
}

type KeyBiasShape = Pick<ModelConfig, 'layers' | 'heads' | 'kvHeads' | 'headDim' | 'fusedQkv'>;

/** Qwen2.5 Coder 1.5B has a layer of a hundred times the median, and most within twice. */
const LARGE_RATIO = 5;

/** Undefined if the keys have no bias. */
export async function readKeyBias(
  gguf: Gguf,
  { layers, heads, kvHeads, headDim, fusedQkv }: KeyBiasShape,
): Promise<KeyBias | undefined> {
  const norms: number[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const tensor = gguf.tensors.get(`blk.${layer}.${fusedQkv ? 'attn_qkv' : 'attn_k'}.bias`);
    if (!tensor) return undefined;
    const bias = await readTensorAsFloat32(gguf, tensor);
    const first = fusedQkv ? heads * headDim : 0;
    norms.push(Math.hypot(...bias.subarray(first, first + kvHeads * headDim)));
  }
  const median = norms.toSorted((a, b) => a - b)[(layers - 1) >> 1];
  const norm = Math.max(...norms);
  return { norms, median, largest: { layer: norms.indexOf(norm), norm }, isLarge: norm > LARGE_RATIO * median };
}
