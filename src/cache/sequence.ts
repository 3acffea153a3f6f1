/** What a sequence of tokens in the cache is to others; create-sequence.ts has how it works. */

import type { Device, KvShape, KvView } from '../kernel/device.ts';
import type { LeafLayout } from './leaf.ts';
import type { PageErrorRow } from './page-errors.ts';
import type { Pool, SharedBlock } from './pool.ts';
import type { PrefixIndex } from './prefix.ts';
import type { Leaf, UnfinishedLeaf } from './prefix-node.ts';

export interface SequenceOptions {
  device: Device;
  /** Where blocks are allocated. Default: on the device, without limit. */
  pool?: Pool;
  shape: Omit<KvShape, 'layers' | 'tailTokens'>;
  leaf: LeafLayout;
  /** The newest tokens, which stay in f16. */
  recent: number;
  /** Maximum number of tokens. */
  context: number;
  /** When the context is full: throw, or drop the oldest pages (the sinks stay). */
  overflow?: 'error' | 'slide';
  /** Where sealed leaves are published; without it they stay private. */
  index?: PrefixIndex;
  /** Sequences share leaves only with those of the same salt. */
  salt?: string;
  /** The content to start with. Default: empty. */
  start?: SequenceStart;
}

/** What a sequence starts with: the tokens of leaves, or a copy of another sequence. */
export interface SequenceStart {
  ids: readonly number[];
  /** Page index of leaves[0]. */
  firstLeaf?: number;
  leaves: readonly Leaf[];
  /** The f16 pages of the first leaves, in two-tier and shadow mode. */
  exactPages?: readonly SharedBlock[];
  sinks: SharedBlock;
  /** Copied. Without it the tail is zeros, for the caller to write and to commit. */
  tail?: KvView['tail'];
}

/** A run of rows that all read the same sealed pages. */
export interface SequenceRun {
  /** Index of the first row in the chunk. */
  row: number;
  count: number;
  position: number;
  /** Number of pages that the rows read from codes. */
  sealedPages: number;
  /** The last of these pages is still in the tail and must be sealed before the run. */
  sealsPage: boolean;
}

/** What a sequence had at one moment. It stays readable until it is released. */
export interface HeldContent {
  readonly view: KvView;
  readonly exactView?: KvView;
  /** Number of tokens. */
  readonly length: number;
  release(): void;
}

export interface Sequence {
  readonly view: KvView;
  /** In shadow and two-tier mode: the same sequence with its f16 pages. */
  readonly exactView?: KvView;
  readonly salt: string;
  /** Whether its leaves are published: others may have them. */
  readonly shares: boolean;
  /** Number of tokens, including dropped ones. */
  readonly length: number;
  /** The token ids, including dropped ones; a negative id is that of a token that is not known yet. */
  readonly ids: readonly number[];
  /**
   * Its end in the index. Undefined if there is none: it has no tokens after its last leaf, or a pass is planned, or its
   * leaves are not in the index, because they are private or it has slid.
   */
  readonly unfinished: UnfinishedLeaf | undefined;
  readonly isDisposed: boolean;
  /** Whether a pass is planned that is not committed (it is running, or has failed), or a restored tail is not. */
  readonly isPlanned: boolean;
  /** Number of tokens before the first page that was spilled: all, if none was. A pass reads no others. */
  readonly readableLength: number;
  /** Number of tokens dropped by sliding. */
  readonly droppedTokens: number;
  /** Bytes of leaves, sinks, tail and page errors. Other sequences may hold the same leaves and sinks. */
  readonly bytes: number;
  readonly leafBytes: number;
  /** Bytes that a fork does not share: tail and page errors. */
  readonly privateBytes: number;
  /**
   * Maximum number of tokens in the next chunk. While sliding, a chunk ends where the next page is dropped, so that the
   * tokens that a row sees do not depend on how a prompt was divided into chunks.
   */
  readonly maxChunk: number;
  /**
   * Maximum number of tokens after the next one that `crop` removes again without a trace: those before the last token of a
   * page, so that nothing is sealed with them.
   */
  readonly maxDrafts: number;
  /**
   * Bytes that the next `count` tokens allocate: the leaves that they seal, blocks of the tail, and sinks to write if they
   * are shared.
   */
  bytesFor(count: number): number;
  /**
   * Makes room for `count` more tokens, allocates what they need, and divides them into runs. The next plan replaces one
   * that was not committed.
   */
  plan(count: number): SequenceRun[];
  /**
   * Adds the planned tokens, after the pass, and frees the tail's blocks of those that were sealed. With their ids,
   * publishes the leaves. The last tokens may be added without: they are known later, or cropped.
   */
  commit(count: number, tokens?: ArrayLike<number>): void;
  /** In two-tier mode: frees the newest f16 page. Its codes stay. False if there is none. */
  spillPage(): boolean;
  /** In two-tier mode: takes over the f16 page at `readableLength`, decoded from its codes. */
  unspillPage(page: SharedBlock): void;
  /** Sets the id of a token that was added with a handle or without an id. */
  setToken(position: number, id: number): void;
  /**
   * The length that `crop(length)` would leave. Sealed pages have no f16 values to return to the tail, so a crop into them
   * goes back to a page boundary, or, with a recent window (which would have to be in the tail), to 0.
   */
  croppedLength(length: number): number;
  /**
   * Removes tokens until at most `length` are left, and returns the new length. The sequence then continues exactly as if
   * the removed tokens had never been added.
   */
  crop(length: number): number;
  /** A second sequence with the same tokens: it holds the same leaves and a copy of the tail. Not while a pass is planned. */
  fork(): Sequence;
  /** Holds what it has now for somebody who reads it, whatever becomes of the sequence meanwhile. */
  hold(): HeldContent;
  /**
   * The squared errors of the sealed pages, by page (see page-errors.ts), read from the device; empty if no codec tracks
   * them. No pass may be running on the sequence.
   */
  readErrors(): Promise<ReadonlyMap<number, PageErrorRow>>;
  /** Releases all blocks. No pass may be running on the sequence. A second call does nothing. */
  dispose(): void;
  /** Disposes it after a pass has failed: what its leaves hold is unknown, so nobody may find those it has sealed itself. */
  discard(): void;
}

/** The page in which the sinks end: a prefix with fewer pages has no complete sink block to share. */
export const sinkPage = ({ sinks, pageTokens }: { sinks: number; pageTokens: number }): number =>
  Math.max(0, Math.ceil(sinks / pageTokens) - 1);
