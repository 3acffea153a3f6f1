/**
 * How fast are weight types and mixtures of experts, compared with llama.cpp? Models of one shape with random weights: time
 * does not depend on their values. Each is written to a temporary file that both read.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { formatTable } from '../src/cli/table.ts';
import type { WeightType } from '../src/kernel/weights/types.ts';
import { InputError } from '../src/util/errors.ts';
import { writeGguf } from '../test/support/gguf-writer.ts';
import { type TinyOptions, tinyModel } from '../test/support/tiny-model.ts';
import { describeCpu, measureDecode } from './decode.ts';

interface Options {
  /** Names of models, with commas; otherwise all. */
  models?: string;
  threads: string;
  json: boolean;
}

/** Four layers of Qwen2.5-1.5B, with few tokens in the vocabulary: the layers are what is compared. */
const LAYERS = 4;
const DENSE: TinyOptions = {
  architecture: 'qwen2',
  layers: LAYERS,
  width: 1536,
  heads: 12,
  kvHeads: 2,
  ffn: 8960,
  vocab: 4096,
  randomValues: 2 ** 16,
  context: 2048,
  tied: false,
};
/** Layers of Qwen3-30B-A3B and of gpt-oss, with fewer experts: as many are used for a token as in the real model. */
const QWEN_EXPERTS: TinyOptions = {
  ...DENSE,
  architecture: 'qwen3moe',
  width: 2048,
  heads: 32,
  kvHeads: 4,
  headDim: 128,
  ffn: 768,
  experts: [32, 8],
};
const GPT_OSS: TinyOptions = {
  ...DENSE,
  architecture: 'gpt-oss',
  width: 2880,
  heads: 64,
  kvHeads: 8,
  headDim: 64,
  ffn: 2880,
  experts: [8, 4],
  metadata: { 'gpt-oss.attention.sliding_window': 128 },
};

/**
 * llama.cpp's mixtures "_M": values, the output matrix and half of the layers' down projections have more bits, here in the
 * first and the last of every three layers.
 */
const mixture =
  (more: WeightType) =>
  (name: string): WeightType | undefined => {
    const layer = Number(/^blk\.(\d+)\.(attn_v|ffn_down)\.weight$/.exec(name)?.[1] ?? 1);
    return name === 'output.weight' || layer % 3 !== 1 ? more : undefined;
  };

const models: Record<string, TinyOptions> = {
  Q4_K_M: { ...DENSE, type: 'Q4_K', typeOf: mixture('Q6_K') },
  Q5_K_M: { ...DENSE, type: 'Q5_K', typeOf: mixture('Q6_K') },
  Q6_K: { ...DENSE, type: 'Q6_K' },
  Q8_0: { ...DENSE, type: 'Q8_0' },
  Q4_0: { ...DENSE, type: 'Q4_0' },
  IQ4_NL: { ...DENSE, type: 'IQ4_NL' },
  IQ4_XS: { ...DENSE, type: 'IQ4_XS' },
  'qwen3moe Q4_K': { ...QWEN_EXPERTS, type: 'Q4_K' },
  'gpt-oss MXFP4': { ...GPT_OSS, type: 'Q8_0', expertType: 'MXFP4' },
};

export async function benchWeights({ models: wanted, threads, json }: Options): Promise<void> {
  const names = wanted?.split(',') ?? Object.keys(models);
  const unknown = names.find(name => !models[name]);
  if (unknown) throw new InputError(`There is no model "${unknown}": choose from ${Object.keys(models).join(', ')}.`);
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-bench-'));
  const results = [];
  try {
    for (const name of names) {
      console.error(`bench: ${name}`);
      const model = join(folder, 'model.gguf');
      await writeFile(model, writeGguf(tinyModel(models[name])));
      const { best, ours } = await measureDecode({
        model,
        kv: 'f16',
        depths: [0],
        threads: Number(threads),
        peers: true,
      });
      const [own] = ours;
      results.push({
        name,
        theirs: { ms: best.ms[0], prefill: best.prefill },
        ours: { ms: own.ms[0], prefill: own.prefill },
      });
    }
  } finally {
    await rm(folder, { recursive: true });
  }
  if (json) return console.log(JSON.stringify(results, null, 1));
  const ratio = (x: number) => `${x.toFixed(2)}x`;
  console.log(`${describeCpu()}, Node ${process.versions.node}, ${threads} threads. ${LAYERS} layers, in turns.`);
  console.log(
    formatTable(
      ['', 'llama.cpp, ms', 'kvasir', 'x', 'llama.cpp, prefill/s', 'kvasir', 'x'],
      results.map(({ name, theirs, ours }) => [
        name,
        theirs.ms.toFixed(2),
        ours.ms.toFixed(2),
        ratio(theirs.ms / ours.ms),
        theirs.prefill.toFixed(0),
        ours.prefill.toFixed(0),
        ratio(ours.prefill / theirs.prefill),
      ]),
    ),
  );
}
