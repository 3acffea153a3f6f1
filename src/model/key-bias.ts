/** The bias that a model adds to its keys (qwen2). A large one dwarfs what tells tokens apart. */
import { type Gguf, readTensorAsFloat32 } from './gguf.ts';

export interface KeyBias {
  /** The norm of the bias, by layer. */
  norms: number[];
  median: number;
  largest: { layer: number; norm: number };
  /** Whether a layer's bias stands out so much that a scale shared across channels must fit it. */
  isLarge: boolean;
}

/** Qwen2.5 Coder 1.5B has a layer of a hundred times the median, and most within twice. */
const LARGE_RATIO = 5;

/** Undefined if the keys have no bias. */
export async function readKeyBias(gguf: Gguf, layers: number): Promise<KeyBias | undefined> {
  const norms: number[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const tensor = gguf.tensors.get(`blk.${layer}.attn_k.bias`);
    if (!tensor) return undefined;
    norms.push(Math.hypot(...(await readTensorAsFloat32(gguf, tensor))));
  }
  const median = norms.toSorted((a, b) => a - b)[(layers - 1) >> 1];
  const norm = Math.max(...norms);
  return { norms, median, largest: { layer: norms.indexOf(norm), norm }, isLarge: norm > LARGE_RATIO * median };
}
