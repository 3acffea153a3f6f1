/**
 * Saves a sequence of vectors to a session file, and restores it. Vectors have no token ids: all are 0 in the file. The
 * identity is that of the codecs, so that a cache refuses pages from which it would read other vectors.
 */
import { f16BlockBytes, isValidLeaf } from '../cache/leaf.ts';
import type { Sequence } from '../cache/sequence.ts';
import { readTail, tailFileBytes } from '../cache/tail.ts';
import type { Device } from '../kernel/device.ts';
import { type SealingRule, sealedPagesAt, tailCapacity } from '../kernel/visibility.ts';
import type { Plan } from '../plan/plan.ts';
import { codecIdentity, codecsHash } from '../session/cache-identity.ts';
import { readSession, writeSession } from '../session/session-file.ts';
import { readFrom, type SessionSource, type SessionTarget, writeTo } from '../session/session-io.ts';
import type { SessionIdentity } from '../session/session-manifest.ts';
import { FormatError } from '../util/errors.ts';
import { hashValue } from '../util/hash-value.ts';

/** Bounds the memory that the manifest of a hostile file can claim. */
const MAX_TOKENS = 2 ** 24;

export async function saveVectors(
  device: Device,
  plan: Plan,
  { view, length }: Sequence,
  target: SessionTarget,
): Promise<void> {
  await device.ensureMemory?.([view]);
  const leaves = async function* () {
    for (const leaf of view.leaves) yield device.readBlock(leaf);
  };
  const unsealed = { from: view.leaves.length * plan.pageTokens, to: length };
  const session = writeSession({
    ...{ identity: identityOf(plan), pageTokens: plan.pageTokens, sinkTokens: plan.window.sink },
    tokens: new Int32Array(length),
    leafCount: view.leaves.length,
    leaves: leaves(),
    sinks: await device.readBlock(view.sinkBlock),
    tail: await readTail(device, view, sealingOf(plan), unsealed),
  });
  await writeTo(target, session);
}

/** The content of a session file, verified. */
export interface SavedVectors {
  length: number;
  leaves: readonly Uint8Array[];
  sinks: Uint8Array;
  tail: Uint8Array;
}

/** `checkRoom` throws if this many leaves do not fit: before more of them are read. */
export async function readVectors(
  plan: Plan,
  source: SessionSource,
  checkRoom: (leaves: number) => void,
): Promise<SavedVectors> {
  const { pageTokens, window, leaf: layout, codecs } = plan;
  const sealing = sealingOf(plan);
  const shape = { ...codecs[0].shape, layers: layout.layers };
  const leaves: Uint8Array[] = [];
  const session = await readSession(
    readFrom(source),
    {
      ...{ identity: identityOf(plan), pageTokens, sinkTokens: window.sink },
      tailTokens: tailCapacity(sealing),
      ...{ maxTokens: MAX_TOKENS, vocab: 1 },
      leafBytes: layout.bytes,
      sinkBytes: f16BlockBytes(shape, window.sink),
      tailBytes: () => tailFileBytes(shape, sealing),
      isValidLeaf: leaf => isValidLeaf(layout, leaf),
    },
    leaf => {
      checkRoom(leaves.length + 1);
      leaves.push(leaf);
    },
  );
  const { length } = session.tokens;
  if (leaves.length !== sealedPagesAt(length, sealing))
    throw new FormatError(
      `The session is damaged: ${length} tokens do not have ${leaves.length} leaves. Save it again.`,
    );
  return { length, leaves, sinks: session.sinks, tail: session.tail };
}

const sealingOf = ({ pageTokens, window }: Plan): SealingRule => ({ pageTokens, recent: window.recent });

function identityOf(plan: Plan): SessionIdentity {
  const { spec, window, pageTokens, codecs } = plan;
  const { headDim, kvHeads, ropeFrequencies } = codecs[0].shape;
  return {
    model: 'vectors',
    tokenizer: '',
    rope: hashValue(ropeFrequencies),
    plan: `${spec} ${JSON.stringify({ layers: codecs.length, kvHeads, headDim, window, pageTokens })} ${codecsHash(plan)}`,
    ...codecIdentity(plan),
  };
}
