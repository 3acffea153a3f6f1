/** What a cache costs: true bytes of a model's shape under a spec, windows, tails and padding included. */
import { halfBytes } from '../cache/leaf.ts';
import { createCodec, type KvShape, placeholder } from '../codec/kv.ts';
import { InputError } from '../errors.ts';
import { packedPages } from '../kernel/visibility.ts';
import { bitsOf, byLayer, planBytes, planOfCodecs } from './plan.ts';

export interface ModelShape extends KvShape {
  layers: number;
}

export interface MemoryReport {
  spec: string;
  /** Everything a sealed page stores over its values, keys and values together, layers kept in f16 left out. */
  codeBits: number;
  /** What one more token costs in sealed pages, all layers. */
  bytesPerToken: number;
  /** One sequence of `context` tokens, in full: */
  context: number;
  pageBytes: number;
  /** f16 sinks, recent window and the unfinished page. */
  windowBytes: number;
  /** Reserved in the f16 window and not yet used. */
  paddingBytes: number;
  totalBytes: number;
  /** The same sequence in f16. */
  f16Bytes: number;
  /** f16Bytes / totalBytes. */
  ratio: number;
}

/** The bytes of a plan of this spec, as `planBytes` counts them, by what they hold. */
export function memoryReport(spec: string, shape: ModelShape, context: number): MemoryReport {
  checkCount('layers', shape.layers, 1 << 12);
  checkCount('context', context, 2 ** 40);
  const codec = createCodec(spec, shape, placeholder(spec, shape));
  const { kvHeads, pageTokens } = codec.shape;
  const { sink, recent, edge } = codec.window;
  const codecs = byLayer({ ...shape, kvHeads }, edge, () => codec);
  const plan = planOfCodecs(codec.spec, codec.window, codecs);
  const f16Token = halfBytes({ ...codec.shape, layers: plan.leaf.layers }, 1);
  const pages = packedPages(context, { pageTokens, recent });
  const pageBytes = pages * plan.leaf.bytes;
  const windowBytes = (context - pages * pageTokens + Math.min(sink, context)) * f16Token;
  const totalBytes = planBytes(plan, context);
  const f16Bytes = context * f16Token;
  return {
    spec: codec.spec,
    codeBits: bitsOf(codec),
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

/** How many tokens' pages a budget holds, and how many whole sequences of the report's context. */
export function whatFits(report: MemoryReport, budget: number): { tokens: number; sequences: number } {
  return {
    tokens: Math.floor(budget / report.bytesPerToken),
    sequences: Math.floor(budget / report.totalBytes),
  };
}

function checkCount(name: string, value: number, most: number): void {
  if (!Number.isInteger(value) || value < 1 || value > most)
    throw new InputError(`${name} must be a whole number from 1 to ${most}, not ${value}.`);
}
