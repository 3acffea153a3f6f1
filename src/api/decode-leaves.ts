/** Sealed pages of a text in f16, one after the other in one buffer: to look at them, or for other programs. */
import { decodeVectors, firstToken } from '../cache/decode-vectors.ts';
import type { KvCache } from '../cache/kv-cache.ts';
import { whenPrefetched } from '../cache/prefetch.ts';
import { saltOf } from '../cache/salt.ts';
import { createCodec } from '../codec/kv.ts';
import { F16 } from '../codec/spec.ts';
import type { Engine } from '../engine/engine.ts';
import type { Plan } from '../plan/plan.ts';
import { createYielder } from '../platform/event-loop.ts';
import { checkLayer } from '../util/rules.ts';

export interface DecodeLeavesOptions {
  /** Default: all layers. */
  layers?: readonly number[];
  /** Indices of pages. Default: all that are found. */
  pages?: readonly number[];
  /** Whose pages: that of the request that read the text. */
  tenant?: string;
  cacheSalt?: string;
}

/** A page as attention sees it. */
export interface DecodedLeaf {
  page: number;
  /** f16 bits, [layer][keys, values][kv head][token][dim]. The next page overwrites them. */
  values: Uint16Array;
}

/**
 * Pages from the start of a text that the cache or its tiers have, up to the first that neither has. Layers with a window
 * have only the last ones.
 */
export async function* decodeLeaves(
  { engine, cache, plan }: { engine: Engine; cache: KvCache; plan: Plan },
  ids: readonly number[],
  { layers = plan.codecs.map((_, layer) => layer), pages, tenant = '', cacheSalt }: DecodeLeavesOptions,
): AsyncGenerator<DecodedLeaf, void, void> {
  for (const layer of layers) checkLayer(layer, plan.codecs.length);
  const salt = saltOf(tenant, cacheSalt);
  // The last token of a prompt is never looked for.
  const prompt = [...ids, 0];
  const { pageTokens } = plan;
  const f16 = createCodec(F16, plan.codecs[0].shape);
  const sideBytes = f16.keys.pageBytes;
  const bytes = new Uint8Array(layers.length * 2 * sideBytes);
  const values = new Uint16Array(bytes.buffer);
  await whenPrefetched(onChange => cache.prefetch(prompt, salt, onChange));
  const sequence = await engine.exclusive(async pause => cache.open(pause, prompt, salt));
  try {
    for (let page = firstToken(sequence.view, layers) / pageTokens; page < sequence.view.leaves.length; page++) {
      if (pages && !pages.includes(page)) continue;
      const [from, to] = [page * pageTokens, (page + 1) * pageTokens];
      const decoded = await engine.exclusive(() => decodeVectors(engine.device, sequence, layers, from, to));
      const yielder = createYielder();
      for (const [i, rows] of decoded.flatMap(({ keys, values }) => [keys, values]).entries()) {
        f16.keys.encode(rows, pageTokens, bytes.subarray(i * sideBytes, (i + 1) * sideBytes), from);
        if (yielder.isDue()) await yielder.yieldNow();
      }
      yield { page, values };
    }
  } finally {
    sequence.dispose();
  }
}
