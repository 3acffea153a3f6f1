/**
 * VecInfer (2025) and MILLION: product codes from k-means. As published, one book serves all sub-vectors of a layer's
 * keys, another those of its values.
 *
 * One book fits only what looks alike in every dim. Keys do not: a few channels are large. VecInfer divides each by
 * lambda = sqrt(max |k|) and mixes what is left with a Hadamard matrix; MILLION does neither. Values stay as they are.
 *
 *   y = H (k / lambda)          q . k = (H (lambda q)) . y
 */
import { ShapeError } from '../../errors.ts';
import type { Codec } from '../codec.ts';
import { mapped, plain, rotated } from '../domain.ts';
import type { Family, LearnRequest, Request, Variant } from '../family.ts';
import { type Learned, need } from '../learned.ts';
import { type Domain, pageCodec } from '../page-codec.ts';
import { hadamard } from '../parts/hadamard.ts';
import { identity, matrixOf } from '../parts/rotation.ts';
import { bookFormat, bookLength, learnBooks, type Product } from './book.ts';

const OWN: Variant = { name: 'own', about: 'a codebook a head and sub-vector instead of one for all' };

/** Channels that were never seen to be larger than the square of this are left so. */
const LEAST_SMOOTHING = 1e-3;

export const vec: Family = {
  title: 'VecInfer',
  pattern: /^vec-d([2-9]|1[0-6])b([1-9]|1[0-6])$/,
  bases: ['vec-d4b8', 'vec-d2b4', 'vec-d2b8', 'vec-d8b8'],
  variants: [
    OWN,
    { name: 'smooth', about: 'ablation: smoothing only', side: 'key' },
    { name: 'had', about: 'ablation: Hadamard only', side: 'key' },
  ],
  conflicts: [['smooth', 'had']],
  create,
  learn,
  placeholder,
};

export const million: Family = {
  title: 'MILLION',
  pattern: /^million-d([2-9]|1[0-6])b([1-9]|1[0-6])$/,
  bases: ['million-d4b8'],
  variants: [OWN],
  create,
  learn,
  placeholder,
};

type Common = Omit<Request, 'learned'>;

function create(request: Request): Codec {
  const { spec, shape } = request;
  const product = productOf(request);
  const smoothing = smooths(request) ? need(request, 'smoothing', shape.kvHeads * shape.headDim) : undefined;
  const books = need(request, spec, bookLength(product, shape));
  return pageCodec({
    spec,
    shape,
    budget: budgetOf(product),
    stable: true,
    domain: domainOf(request, smoothing),
    format: bookFormat(books, product, shape),
  });
}

/** The smoothing, which all specs share, and under the spec's own name its books. */
function learn(request: LearnRequest): Learned {
  const { spec, shape, samples } = request;
  const { headDim } = shape;
  const product = productOf(request);
  const smoothing = smooths(request) ? samples.maxima.map(max => Math.max(LEAST_SMOOTHING, Math.sqrt(max))) : undefined;
  const domain = domainOf(request, smoothing);
  const vectors = new Float32Array(samples.vectors.length);
  for (let at = 0; at < vectors.length; at += headDim) {
    const y = Float64Array.from(samples.vectors.subarray(at, at + headDim));
    domain.forward(y, Math.floor(at / headDim / samples.count), 0);
    vectors.set(y, at);
  }
  return { ...(smoothing && { smoothing }), [spec]: learnBooks(vectors, product, shape) };
}

function placeholder(request: Common): Learned {
  const { spec, shape } = request;
  const smoothing = smooths(request) && new Float32Array(shape.kvHeads * shape.headDim).fill(1);
  return { ...(smoothing && { smoothing }), [spec]: new Float32Array(bookLength(productOf(request), shape)) };
}

function productOf({ spec, match, shape: { headDim }, has }: Common): Product {
  const [dims, bits] = [Number(match[1]), Number(match[2])];
  if (headDim % dims !== 0)
    throw new ShapeError(
      `${spec}: sub-vectors of ${dims} dims do not divide heads of ${headDim}. Choose a size that does, such as d4.`,
    );
  return { dims, bits, own: has('own') };
}

const transforms = ({ side, spec }: Common) => side === 'key' && spec.startsWith('vec');
const smooths = (request: Common) => transforms(request) && !request.has('had');
const rotates = (request: Common) => transforms(request) && !request.has('smooth');

function domainOf(request: Common, smoothing: Float32Array | undefined): Domain {
  const { headDim, kvHeads } = request.shape;
  const h = rotates(request) ? hadamard(headDim) : identity;
  if (!smoothing) return rotates(request) ? rotated(headDim, h) : plain(headDim);
  const encode = new Float32Array(kvHeads * headDim * headDim);
  const decode = new Float32Array(encode.length);
  for (let head = 0; head < kvHeads; head++) {
    const scaled = (by: (lambda: number) => number) => (x: Float64Array) => {
      const y = x.map((value, i) => value * by(smoothing[head * headDim + i]));
      h.forward(y);
      return y;
    };
    const at = head * headDim * headDim;
    const into = scaled(lambda => 1 / lambda);
    const back = scaled(lambda => lambda);
    encode.set(matrixOf(into, headDim, headDim), at);
    decode.set(matrixOf(back, headDim, headDim), at);
  }
  return mapped(headDim, { encode, decode });
}

/**
 * Gaussian vectors: what a fine grid of cubes would lose (Zador's formula), less at low rates, where k-means does
 * better; a quarter is added for books that few samples made.
 */
function budgetOf({ dims, bits }: Product): number {
  const rate = bits / dims;
  const cubes = (Math.PI / 6) * (1 + 2 / dims) ** (dims / 2 + 1);
  return Math.min(1, 1.25 * (1 + (cubes - 1) * Math.min(1, rate / 2)) * 4 ** -rate);
}
