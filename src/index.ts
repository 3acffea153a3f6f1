/** Kvasir: the few names most users need. The whole zoo is `kvasir/codec`. */
export { createCodec, type KvCodec, type KvSegment, type KvShape } from './codec/kv.ts';
export { formatSpec, type KvSpec, parseSpec } from './codec/spec.ts';
export { zoo } from './codec/zoo.ts';
export type { ChatOptions, Conversation, Prompt, PromptOptions } from './engine/conversation.ts';
export type { ModelInput, ModelPart } from './engine/engine.ts';
export type { GenerateOptions } from './engine/generate.ts';
export { type LoadOptions, loadModel, type MemoryUse, type Model } from './engine/model.ts';
export type { SampleOptions, TokenLogprob } from './engine/sample.ts';
export type { Result, Stream, Token } from './engine/stream.ts';
export * from './errors.ts';
export { attend } from './kernel/js/attend.ts';
export type { ModelConfig } from './model/config.ts';
export type { ChatMessage, RenderOptions, TextPart, ToolCall } from './model/template.ts';
export type { Tokenizer } from './model/tokenizer.ts';
export type { LoadProgress } from './model/weights.ts';
export { type MemoryReport, type ModelShape, memoryReport, whatFits } from './plan/memory.ts';
export { decodeProfile, type Profile } from './plan/profile.ts';
