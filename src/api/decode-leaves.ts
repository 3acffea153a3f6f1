/** Sealed pages of a text in f16, one after the other in one buffer: to look at them, or for other programs. */
import type { KvCache } from '../cache/kv-cache.ts';
import { leafLayout, transcodeLeaf } from '../cache/leaf.ts';
import { whenPrefetched } from '../cache/prefetch.ts';
import { saltOf } from '../cache/salt.ts';
import { createCodec } from '../codec/kv.ts';
import type { Engine } from '../engine/engine.ts';
import type { KvView } from '../kernel/device.ts';
import { visibleSinks } from '../kernel/visibility.ts';
import type { Plan } from '../plan/plan.ts';
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

/** Pages from the start of a text that the cache or its tiers have, up to the first that neither has. */
export async function* decodeLeaves(
  { engine, cache, plan }: { engine: Engine; cache: KvCache; plan: Plan },
  ids: readonly number[],
  { layers = plan.codecs.map((_, layer) => layer), pages, tenant = '', cacheSalt }: DecodeLeavesOptions,
): AsyncGenerator<DecodedLeaf, void, void> {
  for (const layer of layers) checkLayer(layer, plan.codecs.length);
  const salt = saltOf(tenant, cacheSalt);
  // The last token of a prompt is never looked for.
  const prompt = [...ids, 0];
  const { leaf, pageTokens } = plan;
  const from = { layers: layers.map(layer => leaf.layers[layer]), bytes: leaf.bytes };
  const f16 = createCodec('f16', plan.codecs[0].shape);
  const to = leafLayout(layers.map(() => f16));
  const bytes = new Uint8Array(to.bytes);
  const values = new Uint16Array(bytes.buffer);
  await whenPrefetched(onChange => cache.prefetch(prompt, salt, onChange));
  const sequence = await engine.exclusive(async (_, pause) => cache.open(pause, prompt, salt));
  const { view } = sequence;
  try {
    for (let page = 0; page < view.leaves.length; page++) {
      if (pages && !pages.includes(page)) continue;
      await engine.exclusive(async ({ device }) => {
        await device.ensureMemory?.([view]);
        const start = page * pageTokens;
        await transcodeLeaf(from, await device.readBlock(view.leaves[page]), to, view.shape, start, bytes);
        if (start < view.shape.sinks) copySinks(view, layers, await device.readBlock(view.sinkBlock), values, start);
      });
      yield { page, values };
    }
  } finally {
    sequence.dispose();
  }
}

/** Sinks are not read from codes. */
function copySinks(
  { shape: { kvHeads, headDim, pageTokens, sinks }, leaves }: KvView,
  layers: readonly number[],
  block: Uint8Array<ArrayBuffer>,
  values: Uint16Array,
  start: number,
): void {
  const source = new Uint16Array(block.buffer);
  const end = Math.min(start + pageTokens, visibleSinks(leaves.length, { pageTokens, sinks }));
  layers.forEach((layer, i) => {
    for (let head = 0; head < 2 * kvHeads; head++) {
      const row = (layer * 2 * kvHeads + head) * sinks * headDim;
      values.set(
        source.subarray(row + start * headDim, row + end * headDim),
        (i * 2 * kvHeads + head) * pageTokens * headDim,
      );
    }
  });
}
