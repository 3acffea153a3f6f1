/** Which tensors a model has, and of what shape: extents as in the file, so a matrix is [inputs, outputs]. */
import { FormatError, UnsupportedError } from '../errors.ts';
import { quote, type TensorInfo } from './gguf-header.ts';

type Named = readonly [name: string, ...shape: number[]];

/** What of a model's config its tensors follow from. */
interface Shape {
  architecture: string;
  layers: number;
  width: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  ffn: number;
  vocab: number;
  rope: { dims: number; hasFactors: boolean };
  qkvBias: boolean;
  qkNorm: boolean;
  tiedOutput: boolean;
}

/** The tensors outside of the layers. */
function outerTensors({ width, vocab, tiedOutput, rope }: Shape): Named[] {
  const tensors: Named[] = [
    ['token_embd.weight', width, vocab],
    ['output_norm.weight', width],
  ];
  if (!tiedOutput) tensors.push(['output.weight', width, vocab]);
  if (rope.hasFactors) tensors.push(['rope_freqs.weight', rope.dims / 2]);
  return tensors;
}

/** The tensors of one layer. */
function layerTensors(config: Shape, layer: number): Named[] {
  const { width, heads, kvHeads, headDim, ffn } = config;
  const at = `blk.${layer}.`;
  const q = heads * headDim;
  const kv = kvHeads * headDim;
  const tensors: Named[] = [
    [`${at}attn_norm.weight`, width],
    [`${at}attn_q.weight`, width, q],
    [`${at}attn_k.weight`, width, kv],
    [`${at}attn_v.weight`, width, kv],
    [`${at}attn_output.weight`, q, width],
    [`${at}ffn_norm.weight`, width],
    [`${at}ffn_gate.weight`, width, ffn],
    [`${at}ffn_up.weight`, width, ffn],
    [`${at}ffn_down.weight`, ffn, width],
  ];
  if (config.qkvBias) tensors.push([`${at}attn_q.bias`, q], [`${at}attn_k.bias`, kv], [`${at}attn_v.bias`, kv]);
  if (config.qkNorm) tensors.push([`${at}attn_q_norm.weight`, headDim], [`${at}attn_k_norm.weight`, headDim]);
  return tensors;
}

/** Every tensor must be there with its shape, and no other: one that we would not use is a part we do not know. */
export function checkTensors(config: Shape, tensors: ReadonlyMap<string, TensorInfo>): void {
  const expected = new Set<string>();
  const check = ([name, ...shape]: Named) => {
    const found = tensors.get(name);
    if (!found)
      throw new FormatError(`The model has no tensor ${name}; it should be [${shape}]. Fetch the file again.`);
    if (trimmed(found.shape) !== trimmed(shape))
      throw new FormatError(`Tensor ${name} should be [${shape}] by the model's metadata, but is [${found.shape}].`);
    expected.add(name);
  };
  outerTensors(config).forEach(check);
  // A layer at a time, so that a hostile layer count stops at the first layer that is not there.
  for (let layer = 0; layer < config.layers; layer++) layerTensors(config, layer).forEach(check);
  for (const name of tensors.keys())
    if (!expected.has(name))
      throw new UnsupportedError(
        `The model has a tensor ${quote(name)} that ${config.architecture} models do not use. Take another model.`,
      );
}

/** Trailing extents of 1 mean nothing. */
const trimmed = (shape: readonly number[]): string => shape.join().replace(/(,1)+$/, '');
