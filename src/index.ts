/**
 * Kvasir: `loadModel`, `createCache`, the models of the hub, and their types. Other entry points: `kvasir/codec` (codecs),
 * `kvasir/eval` (quality, calibration), `kvasir/ai-sdk` and `kvasir/worker`.
 */

export type { DecodedLeaf, DecodeLeavesOptions } from './api/decode-leaves.ts';
export {
  type LoadOptions,
  loadModel,
  type MemoryUse,
  type Model,
  type ModelDevice,
  type ModelStats,
} from './api/model.ts';
export type { Vectors } from './cache/decode-vectors.ts';
export type { KvCacheStats, NearestText } from './cache/kv-cache.ts';
export type { AttentionWindows, LeafLayout, WindowPageLayout } from './cache/leaf.ts';
export type { AnswerDelta, Tool, ToolCallDelta, ToolChoice } from './chat/answer.ts';
export type { EncodeChatOptions } from './chat/answer-stream.ts';
export type { Conversation } from './chat/conversation.ts';
export type {
  ChatOptions,
  ConversationOptions,
  MessageContent,
  Prompt,
  PromptOptions,
} from './chat/conversation-options.ts';
export { createCodec, type KvCodec, type KvSegment, type KvShape } from './codec/kv.ts';
export { formatSpec, type KvSpec, parseSpec } from './codec/spec.ts';
export { zoo } from './codec/zoo.ts';
export type { EngineOptions, ModelInput, ModelPart } from './engine/engine.ts';
export type { GenerateOptions } from './engine/generate.ts';
export type { JsonSchema } from './engine/grammar/schema.ts';
export type { GuardStats, QualityLoss, QualityLossAction } from './engine/guard.ts';
export type { LiveDivergence } from './engine/live-divergence.ts';
export type { Quality } from './engine/quality.ts';
export type { Sampled, SampleOptions, TokenLogprob, TokenLogprobs } from './engine/sample.ts';
export type { SchedulerStats } from './engine/scheduler.ts';
export type { Finish, Result, Stream, Timings, Token, Usage } from './engine/stream.ts';
export type { Edge, EdgeKind } from './eviction/graph/edges.ts';
export { createKvGraph, type KvGraph, type KvGraphOptions } from './eviction/graph/kv-graph.ts';
export type { GraphLeaf, LeafTier } from './eviction/graph/node.ts';
export type { EvictionPolicyName } from './eviction/policies.ts';
export {
  type CachedModel,
  cacheDir,
  type Env,
  type HubOptions,
  type ListOptions,
  listModels,
  type ModelName,
  type PulledFile,
  type PullOptions,
  type PullProgress,
  type PullResult,
  parseModelName,
  parseQuant,
  planRemoval,
  pull,
  type Removal,
  type RemoveOptions,
  type ResolvedModel,
  type ResolveOptions,
  removeModel,
  resolveModel,
} from './hub.ts';
export type { Activation, KvLayer, Outliers, PageCodec as DevicePageCodec, RoutingRule } from './kernel/device.ts';
export { type AttendOptions, attend } from './kernel/js/attend.ts';
export { type DeviceName, type ListedDevice, listDevices } from './kernel/open.ts';
export type { Architecture } from './model/architectures.ts';
export type { ExpertsConfig, LayerRope, ModelConfig } from './model/model-config.ts';
export type { BytesInput } from './model/open-bytes.ts';
export type { RopeConfig, RopeScaling } from './model/rope.ts';
export type { ChatMessage, RenderOptions, TextPart, ToolCall } from './model/template.ts';
export type { TextStream } from './model/tokenizer/stream.ts';
export type { DecodeOptions, EncodeOptions, InfillTokens, Tokenizer } from './model/tokenizer.ts';
export type { LoadProgress } from './model/weights.ts';
export { type MemoryReport, type ModelShape, memoryReport, whatFits } from './plan/memory.ts';
export type { KvMode, Plan, Preset } from './plan/plan.ts';
export {
  decodeProfile,
  type PlanMeasurement,
  type Profile,
  type ProfileContent,
  type ProfileShape,
  type Provenance,
  type TextSource,
} from './plan/profile.ts';
export type { ProfileInput } from './plan/profile-input.ts';
export type { SessionSource, SessionTarget } from './session/session-io.ts';
export type { LeafKey } from './store/leaf-key.ts';
export type { Latency, LeafStore, RecordName, StoreStats } from './store/leaf-store.ts';
export type { TiersInput } from './store/open-tiers.ts';
export type { CacheRecord, RecordKind } from './store/record.ts';
export type { TierStats } from './store/tier-chain.ts';
export type { Tier } from './store/tiers.ts';
export type { AsyncDisposableLike, AsyncDispose } from './util/disposable.ts';
export {
  CapacityError,
  ContextError,
  DeviceError,
  FormatError,
  InputError,
  KvasirError,
  NetworkError,
  type OptionNames,
  QualityError,
  ShapeError,
  SpecError,
  UnsupportedError,
  type Wording,
} from './util/errors.ts';
export {
  type CacheOptions,
  type CacheShape,
  createCache,
  type StepRows,
  type VectorCache,
  type VectorSequence,
} from './vectors/vector-cache.ts';
