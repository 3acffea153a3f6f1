/** A sequence of the cache as a session file, whatever its tokens are: those of a conversation, or vectors from elsewhere. */
import { firstVisiblePage, isValidLeaf, isValidWindowPage } from '../cache/leaf.ts';
import type { Restoring } from '../cache/restore.ts';
import type { Sequence } from '../cache/sequence.ts';
import { readTail } from '../cache/tail.ts';
import type { Exclusive } from '../engine/queue.ts';
import type { Block, Device } from '../kernel/device.ts';
import type { SealingRule } from '../kernel/visibility.ts';
import type { Plan } from '../plan/plan.ts';
import { readSession, type Session, writeSession } from './session-file.ts';
import { readFrom, type SessionSource, type SessionTarget, writeTo } from './session-io.ts';
import type { ManifestLimits, SessionManifest } from './session-manifest.ts';
import type { Signer } from './session-signature.ts';

const sealingOf = ({ pageTokens, window }: Plan): SealingRule => ({ pageTokens, recent: window.recent });

/** Blocks are read one by one, each in a turn of its own. */
export async function saveSequence(
  { device, exclusive }: { device: Device; exclusive: Exclusive },
  plan: Plan,
  { view }: Pick<Sequence, 'view'>,
  manifest: Pick<SessionManifest, 'identity' | 'tokens' | 'extra'>,
  target: SessionTarget,
  signer?: Signer,
): Promise<void> {
  const { pageTokens, window } = plan;
  const readBlock = (block: Block) => exclusive(() => device.readBlock(block));
  const read = async function* (blocks: readonly (Block | undefined)[]) {
    for (const block of blocks) if (block) yield readBlock(block);
  };
  const unsealed = { from: view.leaves.length * pageTokens, to: manifest.tokens.length };
  await exclusive(async () => device.ensureMemory?.([view]));
  const content = {
    ...{ ...manifest, pageTokens, sinkTokens: window.sink, leafCount: view.leaves.length, leaves: read(view.leaves) },
    windowPages: read(view.windowPages ?? []),
    sinks: await readBlock(view.sinkBlock),
    tail: await readTail({ readBlock }, view, sealingOf(plan), unsealed),
  };
  await writeTo(target, writeSession(content, signer));
}

/**
 * Reads a session into `restoring`. `finish` gets what it holds besides its leaves, all of it verified; nothing is kept if
 * it throws.
 */
export async function restoreSequence<T>(
  exclusive: Exclusive,
  plan: Plan,
  restoring: Restoring,
  limits: Pick<ManifestLimits, 'identity' | 'maxTokens' | 'vocab'>,
  source: SessionSource,
  signer: Signer | undefined,
  finish: (session: Session & { isSigned: boolean }) => Promise<T>,
): Promise<T> {
  const { pageTokens, window, leaf: layout } = plan;
  const expected = {
    ...{ ...limits, pageTokens, sinkTokens: window.sink, recent: window.recent },
    leafBytes: layout.bytes,
    windowBytes: layout.windowPage?.bytes ?? 0,
    windowPages: (leaves: number) => leaves - firstVisiblePage(layout, leaves, pageTokens),
    sinkBytes: restoring.sinkBytes,
    tailBytes: () => restoring.tailBytes,
    isValidLeaf: (leaf: Uint8Array) => isValidLeaf(layout, leaf),
    isValidWindowPage: (page: Uint8Array) => isValidWindowPage(layout, page),
  };
  const reader = {
    addLeaf: (leaf: Uint8Array) => exclusive(pause => restoring.addLeaf(pause, leaf)),
    addWindowPage: (page: Uint8Array, index: number) => exclusive(pause => restoring.addWindowPage(pause, index, page)),
  };
  try {
    return await finish(await readSession(readFrom(source), expected, reader, signer));
  } catch (error) {
    restoring.discard();
    throw error;
  }
}
