/**
 * Saves a sequence of vectors to a session file, and restores it. Vectors have no token ids: all are 0 in the file. The
 * identity is that of the codecs, so that a cache refuses pages from which it would read other vectors.
 */
import { createSequence } from '../cache/create-sequence.ts';
import type { Pool } from '../cache/pool.ts';
import { startRestoring } from '../cache/restore.ts';
import type { Sequence, SequenceOptions } from '../cache/sequence.ts';
import type { Exclusive } from '../engine/queue.ts';
import type { Device } from '../kernel/device.ts';
import { sealedPagesAt } from '../kernel/visibility.ts';
import type { Plan } from '../plan/plan.ts';
import { codecIdentity, codecsHash } from '../session/cache-identity.ts';
import { restoreSequence, saveSequence } from '../session/sequence-file.ts';
import type { SessionSource, SessionTarget } from '../session/session-io.ts';
import type { SessionIdentity } from '../session/session-manifest.ts';
import { FormatError } from '../util/errors.ts';
import { hashValue } from '../util/hash-value.ts';

/** Bounds the memory that the manifest of a hostile file can claim. */
const MAX_TOKENS = 2 ** 24;

export const saveVectors = (
  engine: { device: Device; exclusive: Exclusive },
  plan: Plan,
  sequence: Sequence,
  target: SessionTarget,
): Promise<void> => {
  const manifest = { identity: identityOf(plan), tokens: new Int32Array(sequence.length) };
  return saveSequence(engine, plan, sequence, manifest, target);
};

/** `open` receives the sequence when all of the file is verified. */
export async function restoreVectors(
  exclusive: Exclusive,
  plan: Plan,
  options: SequenceOptions & { pool: Pool },
  source: SessionSource,
  open: (sequence: Sequence) => void,
): Promise<void> {
  const { device, pool, leaf } = options;
  const sealing = { pageTokens: plan.pageTokens, recent: plan.window.recent };
  const restoring = await exclusive(async () =>
    startRestoring({
      ...{ device, pool, leaf, sealing, shape: { ...options.shape, layers: leaf.layers }, keep: open },
      create: start => createSequence({ ...options, start }),
    }),
  );
  const limits = { identity: identityOf(plan), maxTokens: MAX_TOKENS, vocab: 1 };
  await restoreSequence(exclusive, plan, restoring, limits, source, undefined, async session => {
    const { tokens, leafCount, sinks, tail } = session;
    if (leafCount !== sealedPagesAt(tokens.length, sealing))
      throw new FormatError(
        `The session is damaged: ${tokens.length} tokens do not have ${leafCount} leaves. Save it again.`,
      );
    await exclusive(pause => restoring.finish(pause, { ids: [...tokens], sinks, tail }, {}, false));
  });
}

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
