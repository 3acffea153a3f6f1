/** The codec library: `kvasir/codec`. */
export { attend, attendHead, type Segment } from '../kernel/js/attend.ts';
export { emptyState, merge, output, type State } from '../kernel/state.ts';
export { type Codec, codeBits, type KeyCodec, type Shape, type Side, type ValueCodec } from './codec.ts';
export { createCodec, createSide, type KvCodec, type KvLearned, type KvSegment, type KvShape, learn } from './kv.ts';
export type { Field } from './layout.ts';
export { type Learned, type Samples, samplesOf } from './learned.ts';
export { formatSpec, type KvSpec, parseSpec, type SideSpec, type Window } from './spec.ts';
export { type Loss, measureLoss, type Validation } from './validate.ts';
export { families, zoo } from './zoo.ts';
