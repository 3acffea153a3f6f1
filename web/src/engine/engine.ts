/** What the app needs of something that runs a model: a server, or the library in a Web Worker. */

export interface Turn {
  role: 'system' | 'user' | 'assistant';
  content: string;
  /** Of an answer that goes on. */
  reasoning_content?: string;
}

/** The model that runs, and the format of its cache. */
export interface ModelInfo {
  name: string;
  /** Tells it from others, such as other quantizations of it. */
  id: string;
  /** `wasm`, `webgpu` or `js`; why it was chosen. */
  device: string;
  threads: number;
  deviceReason: string;
  /** The codec of the KV cache, and its bits per value. */
  codec: string;
  bits: number;
  /** Expected divergence from an f16 cache in nats per token, if a profile tells it. */
  divergence?: number;
  /** Max tokens of a conversation. */
  context: number;
  /** Tokens per page; bytes of a packed page, and of a token in f16. */
  pageTokens: number;
  pageBytes: number;
  f16TokenBytes: number;
  /** Whether its chat template knows reasoning before an answer. */
  thinks: boolean;
  /** How many conversations are answered at the same time. */
  maxAnswers: number;
  /** What a packed page of the first layer has in it, in order. */
  pageFields: readonly PageField[];
  notices: readonly string[];
}

export interface PageField {
  side: 'keys' | 'values';
  name: string;
  bytes: number;
  about: string;
}

/** While a model is opened: `fetch` downloads it, and nothing of it is in memory yet. */
export interface LoadProgress {
  phase: 'fetch' | 'hash' | 'load';
  /** Bytes. */
  done: number;
  total: number;
}

/** Bytes of the KV cache of all conversations. */
export interface CacheUse {
  capacity: number;
  used: number;
  /** The part of `used` that is only kept for later prompts. */
  reusable: number;
}

/** A token with its log probability, and those of the most likely ones. */
export interface ScoredToken {
  text: string;
  logprob: number;
  top: readonly { text: string; logprob: number }[];
}

/** New text of an answer. */
export interface AnswerPart {
  text: string;
  reasoning: string;
  /** How many tokens it is made of. */
  tokens: number;
  /** These tokens, if they were asked for. */
  scored: readonly ScoredToken[];
}

/** `loop`: it repeated itself. */
export type Finish = 'stop' | 'length' | 'loop' | 'cancelled';

export interface AnswerEnd {
  finish: Finish;
  /** Undefined if the answer was cancelled before they were known. */
  usage?: { promptTokens: number; reusedTokens: number; completionTokens: number };
}

export interface AskOptions {
  /** The cache of this conversation is kept for its next question. */
  conversation?: string;
  temperature: number;
  topP?: number;
  repetitionPenalty?: number;
  seed?: number;
  maxTokens?: number;
  /** Reason before the answer, or not. Default: as the chat template does. */
  thinks?: boolean;
  /** End an answer that repeats itself. */
  stopLoops?: boolean;
  /** The last turn is the beginning of the answer. */
  continueAnswer?: boolean;
  /** Return the tokens with their log probabilities. */
  scored?: boolean;
  signal: AbortSignal;
  /** How much of the prompt has been read. */
  onPrefill?: (done: number, total: number) => void;
}

export interface Engine {
  readonly info: ModelInfo;
  /** Answers a conversation. An aborted answer ends with `cancelled`; it does not throw. */
  ask(turns: readonly Turn[], options: AskOptions): AsyncGenerator<AnswerPart, AnswerEnd, void>;
  /** Saves the cache of a conversation, so that it is not read again after a reload. */
  keep(conversation: string): Promise<void>;
  countTokens(text: string): Promise<number>;
  cacheUse(): Promise<CacheUse | undefined>;
  /** Resolves when the engine has ended and must be opened again, with the reason. */
  readonly ended: Promise<Error>;
  close(): Promise<void>;
}

/** The engine cannot answer now. */
export class EngineError extends Error {
  /**
   * `key`: an API key is missing or wrong. `absent`: there is no such engine here. `lost`: it does not answer, and may be
   * back soon. `model`: the file is not a model that runs. `full`: the conversation has no room for an answer.
   */
  readonly reason: 'key' | 'absent' | 'lost' | 'model' | 'full' | 'failed';

  constructor(message: string, reason: EngineError['reason'] = 'failed') {
    super(message);
    this.name = 'EngineError';
    this.reason = reason;
  }
}
