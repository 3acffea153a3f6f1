/** The codec library: `kvasir/codec`. */
export { type AttentionState, attentionOutput, emptyState, mergeStates } from '../kernel/attention-state.ts';
export type { Outliers } from '../kernel/device.ts';
export {
  type AttendOptions,
  attend,
  attendHead,
  type Segment,
} from '../kernel/js/attend.ts';
export type { CodeGrid, PageEncoding, PageLayout, ScalarArray } from '../kernel/page-layout.ts';
export type { KeyReader, TransformedQuery, ValueReader } from '../kernel/page-readers.ts';
export {
  type Codec,
  codeBits,
  type DistortionBounds,
  type KeyCodec,
  type PageCodec,
  type Shape,
  type Side,
  type ValueCodec,
} from './codec.ts';
export type { CodecRequest, Family, LearnRequest, SideRequest, Variant } from './family.ts';
export {
  createCodec,
  createSideCodec,
  type KvCodec,
  type KvLearned,
  type KvSegment,
  type KvShape,
  learn,
} from './kv.ts';
export { type Learned, type Samples, samplesOf } from './learned.ts';
export type { Field } from './page-fields.ts';
export { type F16Window, formatSpec, type KvSpec, parseSpec, type SideSpec } from './spec.ts';
export { type Loss, measureLoss, type Validation } from './validate.ts';
export { families, zoo } from './zoo.ts';
