/** `createService`: a loaded model of this process as a service. */

import type { Model } from '../api/model.ts';
import { encodeText } from '../chat/answers.ts';
import type { Conversation } from '../chat/conversation.ts';
import { checkPrompt } from '../chat/options.ts';
import type { KvCodec } from '../codec/kv.ts';
import { f16Bytes, maxTokensIn, planBytes } from '../plan/plan.ts';
import { describeValue } from '../util/describe-value.ts';
import { InputError } from '../util/errors.ts';
import { boolean, checkOptions, string } from '../util/rules.ts';
import type { ModelService, PageField, ServiceInfo, SlotState } from './service.ts';

/** Slot numbers go from 0 to this. */
const MAX_SLOT = 1023;

/** A text with more tokens than this many contexts is not read to its end: it would hold up others. */
const MAX_CONTEXTS = 2;

interface Slot {
  tenant: string;
  slot: number;
  conversation: Conversation;
  /** While it is saved, restored or erased. */
  isChanging: boolean;
}

/** The service owns the model: `close` disposes it. */
export function createService(model: Model): ModelService {
  const { tokenizer } = model;
  const maxTokens = MAX_CONTEXTS * model.context;
  const slots = new Map<string, Slot>();
  let end: (reason: Error) => void;
  const ended = new Promise<Error>(resolve => {
    end = resolve;
  });
  void model.lost.then(error => end(error));

  const openSlot = (slot: number, tenant = ''): Slot => {
    checkSlot(slot);
    const key = JSON.stringify([tenant, slot]);
    const known = slots.get(key);
    if (known && isBusy(known))
      throw new InputError(`Slot ${slot} is busy. Wait until its request has ended, or use another slot.`);
    const opened = known ?? { tenant, slot, conversation: model.conversation({ tenant }), isChanging: false };
    slots.set(key, opened);
    return opened;
  };

  /** Requests of a slot share a conversation; others have none. */
  const runnerOf = (slot: number | undefined, tenant?: string): Pick<Model, 'answer' | 'generate'> =>
    slot === undefined ? model : openSlot(slot, tenant).conversation;

  /** Changes a slot while no request may use it. */
  const changeSlot = async <T>(slot: number, tenant: string | undefined, change: (slot: Slot) => Promise<T>) => {
    const opened = openSlot(slot, tenant);
    opened.isChanging = true;
    try {
      return await change(opened);
    } finally {
      opened.isChanging = false;
    }
  };

  return {
    info: describeModel(model),
    ended,
    stats: async () => ({ ...model.stats(), memory: model.memory() }),
    ping: () => model.ping(),
    answer: (messages, { slot, ...options } = {}) => runnerOf(slot, options.tenant).answer(messages, options),
    generate: (prompt, { slot, ...options } = {}) => runnerOf(slot, options.tenant).generate(prompt, options),
    async tokenize(text, options) {
      if (typeof text !== 'string') throw new InputError(`tokenize needs a string; got ${describeValue(text)}.`);
      checkOptions('tokenize', options, { bos: boolean, parseSpecialTokens: boolean });
      return tokenizer.encode(text, { ...options, maxTokens });
    },
    async tokenizePrompt(text, options) {
      checkPrompt(text);
      checkOptions('tokenizePrompt', options, { parseSpecialTokens: boolean, suffix: string() });
      return encodeText(tokenizer, text, { ...options, maxTokens });
    },
    tokenizeChat: async (messages, options) => model.encodeChat(messages, { ...options, maxTokens }),
    async detokenize(ids) {
      if (!Array.isArray(ids)) throw new InputError(`detokenize needs an array of ids; got ${describeValue(ids)}.`);
      return tokenizer.decode(ids, { includeSpecialTokens: true });
    },
    tokenBytes: async ids => ids.map(id => tokenizer.tokenBytes(id, { includeSpecialTokens: true })),
    nearestText: async (prompt, options) => model.nearestText(prompt, options),
    saveSlot: (slot, path, tenant) =>
      changeSlot(slot, tenant, async opened => {
        await opened.conversation.save(path);
        return { ...describeSlot(opened), busy: false };
      }),
    restoreSlot: (slot, path, tenant) =>
      changeSlot(slot, tenant, async opened => {
        const restored = await model.restore(path, { tenant: opened.tenant });
        await opened.conversation.dispose();
        opened.conversation = restored;
        return { ...describeSlot(opened), busy: false };
      }),
    eraseSlot: (slot, tenant) =>
      changeSlot(slot, tenant, async opened => {
        await opened.conversation.dispose();
        slots.delete(JSON.stringify([opened.tenant, slot]));
      }),
    slots: async (tenant = '') =>
      [...slots.values()]
        .filter(slot => slot.tenant === tenant)
        .map(describeSlot)
        .filter(({ tokens, busy }) => tokens > 0 || busy)
        .sort((a, b) => a.slot - b.slot),
    async close() {
      await model.dispose();
      end(new InputError('The service was closed.'));
    },
  };
}

function describeModel(model: Model): ServiceInfo {
  const { config, plan, context, maxSequences, device, notices } = model;
  const { capacity } = model.stats();
  return {
    modelName: config.name,
    architecture: config.architecture,
    ...(plan.preset && { preset: plan.preset }),
    kv: plan.spec,
    kvBits: plan.bits,
    ...(plan.predicted !== undefined && { expectedDivergence: plan.predicted }),
    context,
    trainedContext: config.context,
    vocab: config.vocab,
    weightBytes: model.memory().weights,
    infill: model.tokenizer.infill !== undefined,
    thinks: model.thinks,
    kvMemory: capacity,
    tokensThatFit: maxTokensIn(plan, capacity),
    sequencesAtFullContext: Math.floor(capacity / planBytes(plan, context)),
    maxSequences,
    pageTokens: plan.pageTokens,
    pageBytes: plan.leaf.bytes,
    f16TokenBytes: f16Bytes(plan, 1),
    pageFields: (['keys', 'values'] as const).flatMap(side => describePage(plan.codecs[0], side)),
    device: { ...device },
    notices: [...notices],
  };
}

function describePage(codec: KvCodec, side: 'keys' | 'values'): PageField[] {
  const { kvHeads } = codec.shape;
  return codec[side].fields.map(({ name, bytes, per, about }) => ({
    ...{ side, name, about },
    bytes: per === 'head' ? kvHeads * bytes : bytes,
  }));
}

function checkSlot(slot: unknown): void {
  if (!Number.isInteger(slot) || (slot as number) < 0 || (slot as number) > MAX_SLOT)
    throw new InputError(`A slot must be an integer from 0 to ${MAX_SLOT}; got ${describeValue(slot)}.`);
}

const isBusy = ({ conversation, isChanging }: Slot): boolean => isChanging || conversation.isAnswering;

const describeSlot = (slot: Slot): SlotState => ({
  slot: slot.slot,
  tokens: slot.conversation.length,
  bytes: slot.conversation.bytes,
  busy: isBusy(slot),
});
