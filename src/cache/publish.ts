/** What others can find of a sequence in the prefix index: its leaves as they are sealed, and its unfinished one. */
import type { KvShape } from '../kernel/device.ts';
import { assert } from '../util/errors.ts';
import type { SharedBlock } from './pool.ts';
import type { PrefixIndex } from './prefix.ts';
import { type UnfinishedLeaf, windowPageOf } from './prefix-node.ts';
import type { SealedPages } from './sealed-pages.ts';
import { sinkPage } from './sequence.ts';
import type { Tail } from './tail.ts';

/** The parts of a sequence, now. */
export interface SequenceParts {
  shape: Pick<KvShape, 'pageTokens' | 'sinks'>;
  salt: string;
  ids: readonly number[];
  sealed: SealedPages;
  sinks: SharedBlock;
  tail: Tail;
}

/** Publishes the leaves that have no node yet. A sequence that has slid publishes none: its later pages saw less. */
export function publishLeaves(index: PrefixIndex, { shape, salt, ids, sealed, sinks }: SequenceParts): void {
  if (sealed.first > 0) return;
  const { pageTokens } = shape;
  const { leaves } = sealed;
  for (let page = leaves.findIndex(({ node }) => !node); page >= 0 && page < leaves.length; page++) {
    // Undefined if the leaf before it is private.
    const parent = page === 0 ? index.root(salt) : leaves[page - 1].node;
    if (!parent) return;
    const tokens = ids.slice(page * pageTokens, (page + 1) * pageTokens);
    assert(
      tokens.every(id => id >= 0),
      `page ${page} was sealed before its tokens were known`,
    );
    const ownSinks = page === sinkPage(shape) ? sinks : undefined;
    const own = leaves[page];
    const node = index.insert(parent, tokens, own, ownSinks);
    const { leaf } = node;
    // Another sequence has sealed the same page.
    if (!leaf || leaf === own) continue;
    const windowPage = windowPageOf(own);
    if (windowPage) index.addWindowPage(node, windowPage);
    sealed.replace(page, leaf);
  }
}

/** The tokens after the last leaf; undefined if there are none, or if that leaf is not in the index. */
export function unfinishedLeaf({ shape, salt, ids, sealed, sinks, tail }: SequenceParts): UnfinishedLeaf | undefined {
  const { leaves, first } = sealed;
  const parent = leaves.at(-1)?.node;
  if (first > 0 || (leaves.length > 0 && !parent)) return undefined;
  const from = leaves.length * shape.pageTokens;
  const tokens = ids.slice(from);
  // A token that is not known is one that nobody has read.
  const unknown = tokens.findIndex(id => id < 0);
  if (unknown >= 0) tokens.length = unknown;
  if (tokens.length === 0) return undefined;
  const blocks = tail.blocksOf({ from, to: from + tokens.length });
  return { salt, parent, tokens, blocks, sinks: leaves.length <= sinkPage(shape) ? sinks : undefined };
}
