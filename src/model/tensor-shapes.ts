/** The tensors that a model must have, with their shapes in file order: a matrix is [inputs, outputs]. */
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { architectures, type Traits } from './architectures.ts';
import { quote, type TensorInfo } from './gguf-header.ts';
import type { ExpertsConfig, ModelConfig } from './model-config.ts';

type NamedShape = readonly [name: string, ...shape: number[]];

/** The tensors outside the layers. */
function globalTensors({ width, vocab, tiedOutput, rope }: ModelConfig): NamedShape[] {
  const tensors: NamedShape[] = [
    ['token_embd.weight', width, vocab],
    ['output_norm.weight', width],
  ];
  if (!tiedOutput) tensors.push(['output.weight', width, vocab]);
  if (rope.factors) for (const name of ropeFactorTensors(rope.factors)) tensors.push([name, rope.dims / 2]);
  return tensors;
}

/** LongRoPE has two, of which one is used. */
const ropeFactorTensors = (used: string): string[] =>
  used === 'rope_freqs.weight' ? [used] : ['rope_factors_long.weight', 'rope_factors_short.weight'];

function layerTensors(config: ModelConfig, layer: number): NamedShape[] {
  const { width, heads, kvHeads, headDim, norms, qkNorm, qkvBias, fusedQkv } = config;
  const [q, kv] = [heads * headDim, kvHeads * headDim];
  const projections = Object.entries(fusedQkv ? { attn_qkv: q + 2 * kv } : { attn_q: q, attn_k: kv, attn_v: kv });
  const tensors: NamedShape[] =
    norms === 'outputs'
      ? []
      : [
          ['attn_norm.weight', width],
          [`${config.ffnNorm}.weight`, width],
        ];
  tensors.push(
    ...projections.map(([name, rows]): NamedShape => [`${name}.weight`, width, rows]),
    ['attn_output.weight', q, width],
    ...feedForwardTensors(config, layer),
  );
  if (norms !== 'inputs') tensors.push(['post_attention_norm.weight', width], ['post_ffw_norm.weight', width]);
  if (qkvBias) tensors.push(...projections.map(([name, rows]): NamedShape => [`${name}.bias`, rows]));
  if (config.attentionOutputBias) tensors.push(['attn_output.bias', width]);
  if (config.sinkLogits) tensors.push(['attn_sinks.weight', heads]);
  if (qkNorm)
    tensors.push(
      ['attn_q_norm.weight', qkNorm === 'row' ? q : headDim],
      ['attn_k_norm.weight', qkNorm === 'row' ? kv : headDim],
    );
  return tensors.map(([name, ...shape]) => [`blk.${layer}.${name}`, ...shape]);
}

function feedForwardTensors(config: ModelConfig, layer: number): NamedShape[] {
  const { width, fusedGateUp, feedForwardBias } = config;
  const experts = layer < (config.experts?.denseLayers ?? 0) ? undefined : config.experts;
  const { ffn } = experts ?? config;
  const gate: NamedShape[] = fusedGateUp ? [] : [['ffn_gate', width, ffn]];
  const inner: NamedShape[] = [...gate, ['ffn_up', width, fusedGateUp ? 2 * ffn : ffn], ['ffn_down', ffn, width]];
  const matrices: NamedShape[] = experts
    ? [
        ['ffn_gate_inp', width, experts.count],
        ...inner.map(([name, ...shape]): NamedShape => [`${name}_exps`, ...shape, experts.count]),
        ...(experts.shared ? sharedExpertTensors(width, experts.shared) : []),
      ]
    : inner;
  const tensors = matrices.flatMap(([name, inputs, ...outputs]): NamedShape[] => [
    [`${name}.weight`, inputs, ...outputs],
    ...(feedForwardBias ? [[`${name}.bias`, ...outputs] as const] : []),
  ]);
  if (experts?.selectionBias) tensors.push([experts.selectionBias, experts.count]);
  return tensors;
}

const sharedExpertTensors = (width: number, { ffn, gated }: NonNullable<ExpertsConfig['shared']>): NamedShape[] => [
  ...(gated ? [['ffn_gate_inp_shexp', width] as const] : []),
  ['ffn_gate_shexp', width, ffn],
  ['ffn_up_shexp', width, ffn],
  ['ffn_down_shexp', ffn, width],
];

/** All tensors of a model. */
export const tensorShapes = (config: ModelConfig): NamedShape[] => [
  ...globalTensors(config),
  ...Array.from({ length: config.layers }, (_, layer) => layerTensors(config, layer)).flat(),
];

/** Every expected tensor must exist with its shape, and no other: an unused tensor means an unsupported feature. */
export function checkTensors(config: ModelConfig, tensors: ReadonlyMap<string, TensorInfo>): void {
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
  for (const name of loadedTensors(config, tensors).keys())
    if (!expected.has(name))
      throw new UnsupportedError(
        `The model has a tensor ${quote(name)} that ${config.architecture} models do not use. Use another model.`,
      );
}

/** Without those of an image encoder, and of layers that predict further tokens. */
export function loadedTensors<T>(
  { architecture, layers }: Pick<ModelConfig, 'architecture' | 'layers'>,
  tensors: ReadonlyMap<string, T>,
): Map<string, T> {
  const { imageEncoder, skipsPredictors }: Traits = architectures[architecture];
  const isSkipped = (name: string) =>
    (imageEncoder && /^(v|mm)\./.test(name)) ||
    (skipsPredictors && Number(/^blk\.(\d{1,9})\./.exec(name)?.[1] ?? -1) >= layers);
  return new Map([...tensors].filter(([name]) => !isSkipped(name)));
}

/** Trailing extents of 1 are ignored. */
const withoutTrailingOnes = (shape: readonly number[]): string => shape.join().replace(/(,1)+$/, '');
