/** Saves a conversation's cache to a session file, and restores it: the next token then needs no prefill. */
import type { KvCache, Owner } from '../cache/kv-cache.ts';
import { saltOf, tenantOf } from '../cache/salt.ts';
import type { Sequence } from '../cache/sequence.ts';
import type { Engine } from '../engine/engine.ts';
import { checkMessages } from '../model/message.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Plan } from '../plan/plan.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { cacheIdentity } from './cache-identity.ts';
import { restoreSequence, saveSequence } from './sequence-file.ts';
import type { SessionSource, SessionTarget } from './session-io.ts';
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
  // Its blocks now: the model may be disposed while this waits, and then reading them fails with an error that says so.
  const view = { ...sequence.view };
  const tokens = Int32Array.from(sequence.ids);
  // The cache may lack more than the last token, after a crop or a cancelled prompt: those are prefilled again.
  const lastIds = ids.slice(tokens.length, tokens.length + 1);
  const extra: SessionExtra = { messages, initialMessages, lastIds, arithmetic: engine.device.arithmetic };
  const manifest = { tokens, extra, identity: await cacheIdentity(engine, plan) };
  // Pages of a session that was not signed here stay so, whoever saves them again. Those of a salt are not signed: whoever
  // restores them would share them without it.
  const isSalted = sequence.salt !== saltOf(tenantOf(sequence.salt));
  const signer = sequence.shares && !isSalted ? await openSigner() : undefined;
  await saveSequence(engine, plan, { view }, manifest, target, signer);
}

function checkSavable({ mode }: Plan): void {
  if (mode === 'packed') return;
  throw new UnsupportedError(
    option =>
      `Sessions cannot be saved or restored in ${mode} mode, whose pages have read f16 pages. Load the model without ` +
      `${option('kvMode')}.`,
  );
}

/** Reads a session into the cache, as the idle sequence of `owner`. Nothing is kept of a session that is refused. */
export async function restoreSession(
  { engine, cache, plan, context }: { engine: Engine; cache: KvCache; plan: Plan; context: number },
  source: SessionSource,
  owner: Owner,
  tenant = '',
): Promise<SavedConversation> {
  checkSavable(plan);
  const identity = await cacheIdentity(engine, plan);
  const signer = await openSigner();
  const { exclusive, device, config } = engine;
  const { vocab } = config;
  const restoring = await exclusive(async pause => cache.restore(pause, saltOf(tenant)));
  const limits = { identity, vocab, maxTokens: context };
  return restoreSequence(exclusive, plan, restoring, limits, source, signer, async session => {
    const { messages, initialMessages, lastIds, arithmetic } = checkExtra(session.extra, vocab);
    const { sinks, tail, isSigned } = session;
    const ids = [...session.tokens];
    const shares = isSigned && arithmetic === device.arithmetic;
    await exclusive(pause => restoring.finish(pause, { ids, sinks, tail }, owner, shares));
    return { messages, initialMessages, ids: [...ids, ...lastIds] };
  });
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
