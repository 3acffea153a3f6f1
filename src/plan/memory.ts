/** What a cache costs: true bytes of a model's shape under a spec, windows, tails and padding included. */
import { codeBits } from '../codec/codec.ts';
import { createCodec, type KvCodec, type KvLearned, type KvShape, learn } from '../codec/kv.ts';
import { gaussianSamples } from '../codec/learned.ts';
import { InputError } from '../errors.ts';

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

export function memoryReport(spec: string, shape: ModelShape, context: number): MemoryReport {
  checkCount('layers', shape.layers, 1 << 12);
  checkCount('context', context, 2 ** 40);
  const codec = createCodec(spec, shape, anything(spec, shape));
  const { kvHeads, headDim, pageTokens } = codec.shape;
  const { sink, recent, edge } = codec.window;
  const coded = Math.max(0, shape.layers - 2 * edge);
  const exact = shape.layers - coded;

  const f16Token = 2 * 2 * kvHeads * headDim;
  const codedToken = (codec.keys.pageBytes + codec.values.pageBytes) / pageTokens;
  const sealed = Math.floor(Math.max(0, context - recent) / pageTokens) * pageTokens;
  const window = context - sealed;
  const capacity = recent + pageTokens;

  const pageBytes = sealed * (coded * codedToken + exact * f16Token);
  const windowBytes = shape.layers * window * f16Token + coded * Math.min(sink, sealed) * f16Token;
  const paddingBytes = shape.layers * Math.max(0, capacity - window) * f16Token;
  const totalBytes = pageBytes + windowBytes + paddingBytes;
  const f16Bytes = shape.layers * context * f16Token;
  return {
    spec: codec.spec,
    codeBits: bitsOf(codec),
    bytesPerToken: coded * codedToken + exact * f16Token,
    context,
    pageBytes,
    windowBytes,
    paddingBytes,
    totalBytes,
    f16Bytes,
    ratio: f16Bytes / totalBytes,
  };
}

/** Code bits a value over keys and values together. */
export const bitsOf = ({ keys, values }: KvCodec): number => (codeBits(keys) + codeBits(values)) / 2;

/** How many tokens' pages a budget holds, and how many whole sequences of the report's context. */
export function whatFits(report: MemoryReport, budget: number): { tokens: number; sequences: number } {
  return {
    tokens: Math.floor(budget / report.bytesPerToken),
    sequences: Math.floor(budget / report.totalBytes),
  };
}

/** Sizes do not depend on what was learned, so anything will do where only bytes are counted. */
function anything(spec: string, shape: KvShape): KvLearned {
  const samples = gaussianSamples({ kvHeads: 1, ...shape }, 64);
  return learn(spec, shape, { key: samples, value: samples });
}

function checkCount(name: string, value: number, most: number): void {
  if (!Number.isInteger(value) || value < 1 || value > most)
    throw new InputError(`${name} must be a whole number from 1 to ${most}, not ${value}.`);
}
