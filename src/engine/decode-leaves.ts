/** Sealed pages of a text in f16, one after the other in one buffer: to look at them, or for other programs. */
import type { KvCache, Owner } from '../cache/kv-cache.ts';
import { leafLayout, transcodeLeaf } from '../cache/leaf.ts';
import { saltOf } from '../cache/salt.ts';
import { createCodec } from '../codec/kv.ts';
import type { Block, KvView } from '../kernel/device.ts';
import { visibleSinks } from '../kernel/visibility.ts';
import type { Plan } from '../plan/plan.ts';
import type { Engine } from './engine.ts';
import { checkLayer } from './vector-input.ts';

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
  await warmPrompt(cache, prompt, salt);
  const sequence = cache.open(prompt, salt);
  const { view } = sequence;
  const { pageTokens } = view.shape;
  const from = { layers: layers.map(layer => view.shape.layers[layer]), bytes: plan.leaf.bytes };
  const to = leafLayout(layers.map(() => createCodec('f16', plan.codecs[0].shape)));
  const values = new Uint16Array(to.bytes / 2);
  try {
    for (let page = 0; page < view.leaves.length; page++) {
      if (pages && !pages.includes(page)) continue;
      await engine.exclusive(async ({ device }) => {
        await device.ensureMemory?.([view]);
        const read = async (block: Block) => device.readBlock(block);
        const start = page * pageTokens;
        await transcodeLeaf(from, await read(view.leaves[page]), to, view.shape, start, new Uint8Array(values.buffer));
        if (start < view.shape.sinks) copySinks(view, layers, await read(view.sinkBlock), values, start);
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

/** Resolves when what can be warmed of a prompt is there. */
export function warmPrompt(cache: KvCache, prompt: readonly number[], salt: string, owner?: Owner): Promise<void> {
  return new Promise(resolve => {
    const noteChange = () => {
      if (!warming?.isActive) resolve();
    };
    const warming = cache.warm(prompt, salt, noteChange, owner);
    noteChange();
  });
}
