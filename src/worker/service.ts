/**
 * A model as a service: what a server or a page asks of it, in plain data that can be sent as messages. `createService`
 * implements it on a loaded model; `connectService` forwards it to one in a child process or a browser Worker.
 */

import type { MemoryUse, ModelDevice, ModelStats } from '../api/model.ts';
import type { NearestText } from '../cache/kv-cache.ts';
import type { AnswerDelta } from '../chat/answer.ts';
import type { EncodeChatOptions } from '../chat/answer-stream.ts';
import type { ChatOptions, PromptOptions } from '../chat/conversation-options.ts';
import type { Stream, Token } from '../engine/stream.ts';
import type { ChatMessage } from '../model/template.ts';
import type { Preset } from '../plan/plan.ts';

/** A loaded model, described. */
export interface ServiceInfo {
  /** `general.name` of the model file. */
  modelName?: string;
  architecture: string;
  /** The preset that chose the codec; undefined if it was given. */
  preset?: Preset;
  /** The codec of the cache, as a spec string; its bits per value. */
  kv: string;
  kvBits: number;
  /** Expected divergence of the codec in nats per token, if a profile tells it. */
  expectedDivergence?: number;
  /** Max tokens per sequence. */
  context: number;
  trainedContext: number;
  vocab: number;
  /** Bytes of the weights. */
  weightBytes: number;
  /** Whether it fills in the middle: `generate` takes a suffix. */
  infill: boolean;
  /** Whether its chat template knows reasoning before an answer. */
  thinks: boolean;
  /** Bytes of the whole cache, tokens that one sequence could have in it, and sequences of `context` tokens that fit. */
  kvMemory: number;
  tokensThatFit: number;
  sequencesAtFullContext: number;
  maxSequences: number;
  /** Tokens per page; bytes of a sealed page and of a token that is not sealed yet (f16), all layers. */
  pageTokens: number;
  pageBytes: number;
  f16TokenBytes: number;
  /** What a sealed page of the first layer has in it, in order. */
  pageFields: readonly PageField[];
  device: ModelDevice;
  notices: readonly string[];
}

/** A part of a page: keys and values have pages of their own. */
export interface PageField {
  side: 'keys' | 'values';
  name: string;
  /** Of all heads together. */
  bytes: number;
  about: string;
}

/** The state of a service. */
export interface ServiceStats extends ModelStats {
  memory: MemoryUse;
}

/** Runs in a conversation that keeps its cache, which can be saved and restored. Slots belong to their tenant. */
export interface SlotOption {
  slot?: number;
}

export interface AnswerOptions extends ChatOptions, SlotOption {}

export interface ServicePromptOptions extends PromptOptions, SlotOption {}

export interface TokenizeOptions {
  /** Begin with the BOS token, if the model uses one. Default: false. */
  bos?: boolean;
  /** Parse control tokens in the text. Default: false. */
  parseSpecialTokens?: boolean;
}

export interface ModelService {
  readonly info: ServiceInfo;
  /** Resolves when the service has ended and will not answer again, with the reason. */
  readonly ended: Promise<Error>;
  stats(): Promise<ServiceStats>;
  /** Resolves when the device has done what it was given so far; never, if it hangs. */
  ping(): Promise<void>;
  /** Answers messages. Cancelled by its signal, or when the reader leaves. */
  answer(messages: readonly ChatMessage[], options?: AnswerOptions): Stream<AnswerDelta>;
  /** Continues a text or token ids. */
  generate(prompt: string | readonly number[], options?: ServicePromptOptions): Stream<Token>;
  tokenize(text: string, options?: TokenizeOptions): Promise<number[]>;
  /** The prompt that `generate` makes of a text. */
  tokenizePrompt(text: string, options?: Pick<PromptOptions, 'parseSpecialTokens' | 'suffix'>): Promise<number[]>;
  tokenizeChat(messages: readonly ChatMessage[], options?: EncodeChatOptions): Promise<number[]>;
  detokenize(ids: readonly number[]): Promise<string>;
  /** The bytes that each token adds to a text; of a control token, its name. */
  tokenBytes(ids: readonly number[]): Promise<Uint8Array[]>;
  /** The text in the cache that shares the most tokens with a prompt. */
  nearestText(prompt: readonly number[], options?: Pick<PromptOptions, 'tenant' | 'cacheSalt'>): Promise<NearestText>;
  /** Saves a slot's conversation to a file of the engine's machine. */
  saveSlot(slot: number, path: string, tenant?: string): Promise<SlotState>;
  restoreSlot(slot: number, path: string, tenant?: string): Promise<SlotState>;
  eraseSlot(slot: number, tenant?: string): Promise<void>;
  /** The slots of a tenant that hold something. */
  slots(tenant?: string): Promise<SlotState[]>;
  /** Cancels what runs and frees everything. */
  close(): Promise<void>;
}

/** A slot: a conversation that is kept between requests. */
export interface SlotState {
  slot: number;
  tokens: number;
  bytes: number;
  busy: boolean;
}
