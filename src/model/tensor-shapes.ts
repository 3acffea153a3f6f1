/** The tensors that a model must have, with their shapes in file order: a matrix is [inputs, outputs]. */
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { quote, type TensorInfo } from './gguf-header.ts';

type NamedShape = readonly [name: string, ...shape: number[]];

/** The part of a model's config that determines its tensors. */
interface TensorDims {
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

/** The tensors outside the layers. */
function globalTensors({ width, vocab, tiedOutput, rope }: TensorDims): NamedShape[] {
  const tensors: NamedShape[] = [
    ['token_embd.weight', width, vocab],
    ['output_norm.weight', width],
  ];
  if (!tiedOutput) tensors.push(['output.weight', width, vocab]);
  if (rope.hasFactors) tensors.push(['rope_freqs.weight', rope.dims / 2]);
  return tensors;
}

function layerTensors(config: TensorDims, layer: number): NamedShape[] {
  const { width, heads, kvHeads, headDim, ffn } = config;
  const prefix = `blk.${layer}.`;
  const q = heads * headDim;
  const kv = kvHeads * headDim;
  const tensors: NamedShape[] = [
    [`${prefix}attn_norm.weight`, width],
    [`${prefix}attn_q.weight`, width, q],
    [`${prefix}attn_k.weight`, width, kv],
    [`${prefix}attn_v.weight`, width, kv],
    [`${prefix}attn_output.weight`, q, width],
    [`${prefix}ffn_norm.weight`, width],
    [`${prefix}ffn_gate.weight`, width, ffn],
    [`${prefix}ffn_up.weight`, width, ffn],
    [`${prefix}ffn_down.weight`, ffn, width],
  ];
  if (config.qkvBias)
    tensors.push([`${prefix}attn_q.bias`, q], [`${prefix}attn_k.bias`, kv], [`${prefix}attn_v.bias`, kv]);
  if (config.qkNorm) tensors.push([`${prefix}attn_q_norm.weight`, headDim], [`${prefix}attn_k_norm.weight`, headDim]);
  return tensors;
}

/** Every expected tensor must exist with its shape, and no other: an unused tensor means an unsupported feature. */
export function checkTensors(config: TensorDims, tensors: ReadonlyMap<string, TensorInfo>): void {
  const expected = new Set<string>();
  const check = ([name, ...shape]: NamedShape) => {
    const found = tensors.get(name);
    if (!found)
      throw new FormatError(`The model has no tensor ${name}; it should be [${shape}]. Download the file again.`);
    if (withoutTrailingOnes(found.shape) !== withoutTrailingOnes(shape))
      throw new FormatError(`Tensor ${name} should be [${shape}] by the model's metadata, but is [${found.shape}].`);
    expected.add(name);
  };
  globalTensors(config).forEach(check);
  // Layer by layer, so that a hostile layer count fails at the first missing layer.
  for (let layer = 0; layer < config.layers; layer++) layerTensors(config, layer).forEach(check);
  for (const name of tensors.keys())
    if (!expected.has(name))
      throw new UnsupportedError(
        `The model has a tensor ${quote(name)} that ${config.architecture} models do not use. Use another model.`,
      );
}

/** Trailing extents of 1 are ignored. */
const withoutTrailingOnes = (shape: readonly number[]): string => shape.join().replace(/(,1)+$/, '');
