/** Memory of a KV cache in bytes, including windows, tails and padding. */
import { f16BlockBytes, sealedBytes } from '../cache/leaf.ts';
import { createCodec, type KvShape, placeholderLearned } from '../codec/kv.ts';
import { type KvSpec, toSpec } from '../codec/spec.ts';
import { packedPages } from '../kernel/visibility.ts';
import { integer } from '../util/rules.ts';
import { codecBits, codecsByLayer, createPlanFromCodecs, planBytes } from './plan.ts';

/** The dimensions of a model that determine the size of its cache. */
export interface ModelShape extends KvShape {
  layers: number;
  /** How many of the last tokens each layer sees; undefined: all. */
  attentionWindows?: readonly (number | undefined)[];
}

/** The memory of one sequence of `context` tokens. */
export interface MemoryReport {
  spec: string;
  /** Bits per value of sealed pages, everything that they store included, without layers that stay f16. */
  codeBits: number;
  /** Bytes per token of sealed pages: of all layers but those with a window, which keep only their last tokens. */
  bytesPerToken: number;
  /** Tokens. */
  context: number;
  /** Sealed pages. */
  pageBytes: number;
  /** f16 sinks, recent window and the incomplete page. */
  windowBytes: number;
  /** Reserved for the f16 window, not used yet, and for the errors of pages. */
  paddingBytes: number;
  /** The sum of the above. */
  totalBytes: number;
  /** The same sequence in f16. */
  f16Bytes: number;
  /** f16Bytes / totalBytes. */
  ratio: number;
}

/** The memory of a cache in this format, without loading a model. */
export function memoryReport(kv: string | KvSpec, shape: ModelShape, context: number): MemoryReport {
  integer(1, 1 << 12)(shape.layers, 'layers');
  integer(1, 2 ** 40)(context, 'context');
  const spec = toSpec(kv);
  const codec = createCodec(spec, shape, placeholderLearned(spec, shape));
  const { kvHeads, pageTokens } = codec.shape;
  const { sink, recent, edge } = codec.window;
  const codecs = codecsByLayer({ ...shape, kvHeads }, edge, () => codec);
  const plan = createPlanFromCodecs(codec.spec, codec.window, codecs, shape);
  const f16Token = f16BlockBytes({ ...codec.shape, layers: plan.leaf.layers }, 1);
  const pages = packedPages(context, { pageTokens, recent });
  const pageBytes = sealedBytes(plan.leaf, pages, pageTokens);
  const windowBytes = (context - pages * pageTokens + Math.min(sink, context)) * f16Token;
  const totalBytes = planBytes(plan, context);
  const f16Bytes = context * f16Token;
  return {
    spec: codec.spec,
    codeBits: codecBits(codec),
    bytesPerToken: plan.leaf.bytes / pageTokens,
    context,
    pageBytes,
    windowBytes,
    paddingBytes: totalBytes - pageBytes - windowBytes,
    totalBytes,
    f16Bytes,
    ratio: f16Bytes / totalBytes,
  };
}

/** How many tokens (their sealed pages), and how many sequences of the report's context, fit in `budget` bytes. */
export function whatFits(report: MemoryReport, budget: number): { tokens: number; sequences: number } {
  return {
    tokens: Math.floor(budget / report.bytesPerToken),
    sequences: Math.floor(budget / report.totalBytes),
  };
}
