/** Saves a conversation's cache to a session file, and restores it: the next token then needs no prefill. */
import type { KvCache, Owner } from '../cache/kv-cache.ts';
import { isValidLeaf } from '../cache/leaf.ts';
import { saltOf } from '../cache/salt.ts';
import type { Sequence } from '../cache/sequence.ts';
import { readTail } from '../cache/tail.ts';
import type { Engine } from '../engine/engine.ts';
import type { Block } from '../kernel/device.ts';
import { tailCapacity } from '../kernel/visibility.ts';
import { checkMessages } from '../model/message.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Plan } from '../plan/plan.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { cacheIdentity } from './cache-identity.ts';
import { readSession, writeSession } from './session-file.ts';
import { readFrom, type SessionSource, type SessionTarget, writeTo } from './session-io.ts';
import { openSigner } from './session-secret.ts';

/** What a session holds besides its cache. */
export interface SavedConversation {
  messages: readonly ChatMessage[];
  initialMessages: readonly ChatMessage[];
  /** Tokens of the last prompt and answer. The cache may hold one less. */
  ids: readonly number[];
}

/** The JSON in a session's manifest. */
interface SessionExtra {
  messages: readonly ChatMessage[];
  initialMessages: readonly ChatMessage[];
  /** Token ids that are not in the cache: the last one of an answer. */
  lastIds: readonly number[];
  /** What computed the bytes. Elsewhere they are as good, but not the same as those that would be computed there. */
  arithmetic: string;
}

export async function saveSession(
  engine: Engine,
  plan: Plan,
  sequence: Sequence,
  { messages, initialMessages, ids }: SavedConversation,
  target: SessionTarget,
): Promise<void> {
  checkSavable(plan);
  if (sequence.droppedTokens > 0)
    throw new UnsupportedError(
      option =>
        `A conversation whose oldest tokens were dropped (${option('overflow', 'slide')}) cannot be saved. Use a larger ` +
        `${option('context')}.`,
    );
  const { device } = engine;
  // Its blocks now: the model may be disposed while this waits, and then reading them fails with an error that says so.
  const view = { ...sequence.view };
  const tokens = Int32Array.from(sequence.ids);
  const identity = await cacheIdentity(engine, plan);
  const read = (block: Block) => engine.exclusive(() => device.readBlock(block));
  const sealing = { pageTokens: plan.pageTokens, recent: plan.window.recent };
  const unsealed = { from: view.leaves.length * plan.pageTokens, to: tokens.length };
  // The cache may lack more than the last token, after a crop or a cancelled prompt: those are prefilled again.
  const lastIds = ids.slice(tokens.length, tokens.length + 1);
  const extra: SessionExtra = { messages, initialMessages, lastIds, arithmetic: device.arithmetic };
  await engine.exclusive(async () => device.ensureMemory?.([view]));
  const leaves = async function* () {
    for (const leaf of view.leaves) yield read(leaf);
  };
  const content = {
    ...{ identity, extra, pageTokens: plan.pageTokens, sinkTokens: plan.window.sink },
    tokens,
    leafCount: view.leaves.length,
    leaves: leaves(),
    sinks: await read(view.sinkBlock),
    tail: await readTail({ readBlock: read }, view, sealing, unsealed),
  };
  // Pages of a session that was not signed here stay so, whoever saves them again.
  await writeTo(target, writeSession(content, sequence.shares ? await openSigner() : undefined));
}

function checkSavable({ mode }: Plan): void {
  if (mode === 'packed') return;
  throw new UnsupportedError(
    option =>
      `Sessions cannot be saved or restored in ${mode} mode, whose pages have read f16 pages. Load the model without ` +
      `${option('kvMode')}.`,
  );
}

/** Reads a session into the cache, as a snapshot of `owner`. Nothing is kept of a session that is refused. */
export async function restoreSession(
  { engine, cache, plan, context }: { engine: Engine; cache: KvCache; plan: Plan; context: number },
  source: SessionSource,
  owner: Owner,
  tenant = '',
): Promise<SavedConversation> {
  checkSavable(plan);
  const identity = await cacheIdentity(engine, plan);
  const { vocab } = engine.config;
  const restoring = await engine.exclusive(async (_, pause) => cache.restore(pause, saltOf(tenant)));
  const expected = {
    ...{ identity, pageTokens: plan.pageTokens, sinkTokens: plan.window.sink, maxTokens: context, vocab },
    tailTokens: tailCapacity({ pageTokens: plan.pageTokens, recent: plan.window.recent }),
    leafBytes: plan.leaf.bytes,
    sinkBytes: restoring.sinkBytes,
    tailBytes: () => restoring.tailBytes,
    isValidLeaf: (leaf: Uint8Array) => isValidLeaf(plan.leaf, leaf),
  };
  try {
    const addLeaf = (leaf: Uint8Array) => engine.exclusive((_, pause) => restoring.addLeaf(pause, leaf));
    const session = await readSession(readFrom(source), expected, addLeaf, await openSigner());
    const { messages, initialMessages, lastIds, arithmetic } = checkExtra(session.extra, vocab);
    const tokens = [...session.tokens];
    const { sinks, tail, isSigned } = session;
    await engine.exclusive(({ device }, pause) =>
      restoring.finish(pause, { ids: tokens, sinks, tail }, owner, isSigned && arithmetic === device.arithmetic),
    );
    return { messages, initialMessages, ids: [...tokens, ...lastIds] };
  } catch (error) {
    restoring.discard();
    throw error;
  }
}

/** Session files are untrusted. */
function checkExtra(extra: unknown, vocab: number): SessionExtra {
  const refuse = (what: string): never => {
    throw new FormatError(`The session is damaged: ${what}. Save the conversation again.`);
  };
  const { messages, initialMessages, lastIds, arithmetic } = (extra ?? {}) as Partial<SessionExtra>;
  try {
    checkMessages(messages);
    checkMessages(initialMessages);
  } catch {
    refuse('its messages are invalid');
  }
  const isId = (id: unknown) => Number.isInteger(id) && (id as number) >= 0 && (id as number) < vocab;
  if (!Array.isArray(lastIds) || lastIds.length > 1 || !lastIds.every(isId)) refuse('its last tokens are invalid');
  if (typeof arithmetic !== 'string') refuse('its arithmetic is missing');
  return { messages, initialMessages, lastIds, arithmetic } as SessionExtra;
}
