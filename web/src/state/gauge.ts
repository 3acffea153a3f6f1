/** What a conversation takes in the KV cache. */
import type { ModelInfo } from '../engine/engine.ts';

export interface Gauge {
  tokens: number;
  /** Packed pages, and the newest tokens in f16. */
  bytes: number;
  /** The same tokens in f16. */
  f16Bytes: number;
  /** Tokens that still fit into the context. */
  left: number;
  /** 0 to 1. */
  fraction: number;
}

type CacheInfo = Pick<ModelInfo, 'context' | 'pageTokens' | 'pageBytes' | 'f16TokenBytes'>;

export function gaugeOf(tokens: number, info: CacheInfo): Gauge {
  const { context, pageTokens, pageBytes, f16TokenBytes } = info;
  const pages = Math.floor(tokens / pageTokens);
  return {
    tokens,
    bytes: pages * pageBytes + (tokens - pages * pageTokens) * f16TokenBytes,
    f16Bytes: tokens * f16TokenBytes,
    left: Math.max(0, context - tokens),
    fraction: Math.min(1, tokens / context),
  };
}
