/** Kvasir: the few names most users need. The whole zoo is `kvasir/codec`. */
export { createCodec, type KvCodec, type KvSegment, type KvShape } from './codec/kv.ts';
export { formatSpec, type KvSpec, parseSpec } from './codec/spec.ts';
export { zoo } from './codec/zoo.ts';
export * from './errors.ts';
export { attend } from './kernel/js/attend.ts';
export { type MemoryReport, type ModelShape, memoryReport, whatFits } from './plan/memory.ts';
