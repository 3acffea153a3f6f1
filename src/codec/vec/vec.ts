/**
 * VecInfer (2025) and MILLION: product quantization with k-means codebooks. As published, all sub-vectors of a layer's
 * keys share one codebook, and those of its values another.
 *
 * A shared codebook requires that all dims are distributed alike, but a few channels of the keys are large. VecInfer
 * divides each channel by lambda = sqrt(max |k|) and applies a Hadamard matrix; MILLION does neither. Values are not
 * transformed. Keys are centered, unlike in the papers (`-raw`).
 *
 *   y = H (k / lambda)          q . k = (H (lambda q)) . y
 */
import { ShapeError } from '../../util/errors.ts';
import { centerKeys, isCentered, RAW } from '../centered.ts';
import type { Codec } from '../codec.ts';
import { identityDomain, linearMapDomain, rotatedDomain } from '../domain.ts';
import type { CodecRequest, Family, LearnRequest, SideRequest, Variant } from '../family.ts';
import { centerByPage, type Learned, requireLearned } from '../learned.ts';
import { type Domain, pageCodec } from '../page-codec.ts';
import { hadamard } from '../parts/hadamard.ts';
import { identity, toMatrix } from '../parts/rotation.ts';
import { codebookFormat, codebookLength, type ProductCode, samplesForCodebooks, trainCodebooks } from './codebook.ts';

const OWN: Variant = { name: 'own', about: 'one codebook per head and sub-vector instead of one for all' };

/** Lower bound of lambda, for channels that are (nearly) zero in all samples. */
const MIN_SMOOTHING = 1e-3;

export const vec: Family = {
  title: 'VecInfer',
  pattern: /^vec-d([2-9]|1[0-6])b([1-9]|1[0-6])$/,
  bases: ['vec-d4b8', 'vec-d2b4', 'vec-d2b8', 'vec-d4b12', 'vec-d8b12', 'vec-d8b8'],
  variants: [
    RAW,
    OWN,
    { name: 'smooth', about: 'ablation: smoothing only', side: 'key' },
    { name: 'had', about: 'ablation: Hadamard only', side: 'key' },
  ],
  conflicts: [['smooth', 'had']],
  create,
  learn,
  placeholderLearned,
  recommendedSamples,
};

export const million: Family = {
  title: 'MILLION',
  pattern: /^million-d([2-9]|1[0-6])b([1-9]|1[0-6])$/,
  bases: ['million-d4b8'],
  variants: [RAW, OWN],
  create,
  learn,
  placeholderLearned,
  recommendedSamples,
};

function create(request: CodecRequest): Codec {
  const { spec, shape } = request;
  const product = productOf(request);
  const smoothing = smooths(request)
    ? requireLearned(request, smoothingName(request), shape.kvHeads * shape.headDim)
    : undefined;
  const names = namesOf(request);
  const books = requireLearned(request, names.books, codebookLength(product, shape));
  const format = codebookFormat(books, product, shape);
  return pageCodec({
    spec,
    shape,
    budget: budgetOf(product),
    isIdempotent: !isCentered(request),
    domain: domainOf(request, smoothing),
    // Profiles of Kvasir 0.1.0 have no errors.
    expectedError: request.learned[names.error] && requireLearned(request, names.error, 1)[0],
    format: centerKeys(request, format),
  });
}

/** Names of the learned arrays. Those of centered keys differ from profiles of Kvasir 0.1.0, which have none. */
function namesOf(request: SideRequest) {
  const books = isCentered(request) ? `${request.spec}.centered` : request.spec;
  return { books, error: `${books}.error`, smoothing: `${books}.smoothing` };
}
/** In profiles of Kvasir 0.1.0, all specs share the factors. */
const smoothingName = (request: CodecRequest) => {
  const { smoothing } = namesOf(request);
  return request.learned[smoothing] || isCentered(request) ? smoothing : 'smoothing';
};

/** The smoothing factors, the codebooks, and their mean squared error. */
function learn(request: LearnRequest): Learned {
  const { shape, samples } = request;
  const { headDim, kvHeads } = shape;
  const product = productOf(request);
  const x = isCentered(request) ? centerByPage(samples, shape) : samples.vectors;
  const maxima = isCentered(request) ? maximaPerDim(x, samples.count, kvHeads, headDim) : samples.maxima;
  const smoothing = smooths(request) ? maxima.map(max => Math.max(MIN_SMOOTHING, Math.sqrt(max))) : undefined;
  const domain = domainOf(request, smoothing);
  const vectors = new Float32Array(x.length);
  for (let offset = 0; offset < vectors.length; offset += headDim) {
    const y = Float64Array.from(x.subarray(offset, offset + headDim));
    domain.forward(y, Math.floor(offset / headDim / samples.count), 0);
    vectors.set(y, offset);
  }
  const { books, error } = trainCodebooks(vectors, product, shape);
  const names = namesOf(request);
  return {
    ...(smoothing && { [names.smoothing]: smoothing }),
    [names.books]: books,
    [names.error]: Float32Array.of(error),
  };
}

/** [kv head][dim]: the largest magnitudes of [kv head][sample][dim]. */
function maximaPerDim(x: Float32Array, count: number, kvHeads: number, headDim: number): Float32Array {
  const maxima = new Float32Array(kvHeads * headDim);
  x.forEach((value, i) => {
    const at = Math.floor(i / (count * headDim)) * headDim + (i % headDim);
    maxima[at] = Math.max(maxima[at], Math.abs(value));
  });
  return maxima;
}

function recommendedSamples(request: SideRequest): number {
  return samplesForCodebooks(productOf(request), request.shape);
}

function placeholderLearned(request: SideRequest): Learned {
  const { shape } = request;
  const smoothing = smooths(request) && new Float32Array(shape.kvHeads * shape.headDim).fill(1);
  const names = namesOf(request);
  return {
    ...(smoothing && { [names.smoothing]: smoothing }),
    [names.books]: new Float32Array(codebookLength(productOf(request), shape)),
    [names.error]: new Float32Array(1),
  };
}

function productOf({ spec, match, shape: { headDim }, has }: SideRequest): ProductCode {
  const [subvectorDims, bits] = [Number(match[1]), Number(match[2])];
  if (headDim % subvectorDims !== 0)
    throw new ShapeError(
      `${spec}: sub-vectors of ${subvectorDims} dims do not divide heads of ${headDim}. Choose a size that does, such as d4.`,
    );
  return { subvectorDims, bits, bookPerSubvector: has('own') };
}

const transforms = ({ side, spec }: SideRequest) => side === 'key' && spec.startsWith('vec');
const smooths = (request: SideRequest) => transforms(request) && !request.has('had');
const rotates = (request: SideRequest) => transforms(request) && !request.has('smooth');

function domainOf(request: SideRequest, smoothing: Float32Array | undefined): Domain {
  const { headDim, kvHeads } = request.shape;
  const h = rotates(request) ? hadamard(headDim) : identity;
  if (!smoothing) return rotates(request) ? rotatedDomain(headDim, h) : identityDomain(headDim);
  const encode = new Float32Array(kvHeads * headDim * headDim);
  const decode = new Float32Array(encode.length);
  for (let head = 0; head < kvHeads; head++) {
    const scaled = (by: (lambda: number) => number) => (x: Float64Array) => {
      const y = x.map((value, i) => value * by(smoothing[head * headDim + i]));
      h.forward(y);
      return y;
    };
    const offset = head * headDim * headDim;
    const encodeMap = scaled(lambda => 1 / lambda);
    const queryMap = scaled(lambda => lambda);
    encode.set(toMatrix(encodeMap, headDim, headDim), offset);
    decode.set(toMatrix(queryMap, headDim, headDim), offset);
  }
  return linearMapDomain(headDim, { encode, decode });
}

/**
 * The error on Gaussian vectors: that of a fine cubic grid (Zador's formula), less at low rates, where k-means is better,
 * plus a quarter for codebooks trained on few samples.
 */
function budgetOf({ subvectorDims, bits }: ProductCode): number {
  const rate = bits / subvectorDims;
  const cubes = (Math.PI / 6) * (1 + 2 / subvectorDims) ** (subvectorDims / 2 + 1);
  return Math.min(1, 1.25 * (1 + (cubes - 1) * Math.min(1, rate / 2)) * 4 ** -rate);
}
