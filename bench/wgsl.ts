/** The WebGPU kernels that seal and read the pages of a codec, as WGSL to read. Needs no GPU. */
import { leafLayout } from '../src/cache/leaf.ts';
import { createCodec, placeholderLearned } from '../src/codec/kv.ts';
import { createRopeFrequencies } from '../src/codec/parts/rope.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { codecKernels, dumpKernel } from '../src/kernel/webgpu/dump.ts';

interface Options {
  kv: string;
  /** Query heads, KV heads and head dimension. */
  heads: string;
  /** New tokens per step: 1 is decoding, more is a prompt. */
  rows: string;
  subgroups: boolean;
  precise: boolean;
}

const PAGE_TOKENS = 128;

/** With placeholders for what a profile holds: only a few constants in the kernels depend on it. */
export async function benchWgsl({ kv, heads, rows, subgroups, precise }: Options): Promise<void> {
  const [queryHeads, kvHeads, headDim] = heads.split('/').map(Number);
  const shape = { heads: queryHeads, kvHeads, headDim, pageTokens: PAGE_TOKENS };
  const codecShape = { ...shape, ropeFrequencies: createRopeFrequencies(shape.headDim) };
  const spec = parseSpec(kv);
  const [layer] = leafLayout([createCodec(spec, codecShape, placeholderLearned(spec, codecShape))]).layers;
  const kernels = await codecKernels(layer, Number(rows), { ...shape, precise, subgroupSize: subgroups ? 32 : 0 });
  console.log(kernels.map(dumpKernel).join('\n\n'));
}
