/**
 * VecInfer (2025) and MILLION: product quantization with k-means codebooks. As published, all sub-vectors of a layer's
 * keys share one codebook, and those of its values another.
 *
 * A shared codebook requires that all dims are distributed alike, but a few channels of the keys are large. VecInfer
 * divides each channel by lambda = sqrt(max |k|) and applies a Hadamard matrix; MILLION does neither. Values are not
 * transformed.
 *
 *   y = H (k / lambda)          q . k = (H (lambda q)) . y
 */
import { ShapeError } from '../../errors.ts';
import type { Codec } from '../codec.ts';
import { identityDomain, linearMapDomain, rotatedDomain } from '../domain.ts';
import type { CodecRequest, Family, LearnRequest, Variant } from '../family.ts';
import { type Learned, requireLearned } from '../learned.ts';
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
  variants: [OWN],
  create,
  learn,
  placeholderLearned,
  recommendedSamples,
};

type UntrainedRequest = Omit<CodecRequest, 'learned'>;

function create(request: CodecRequest): Codec {
  const { spec, shape } = request;
  const product = productOf(request);
  const smoothing = smooths(request)
    ? requireLearned(request, smoothingName(request), shape.kvHeads * shape.headDim)
    : undefined;
  const books = requireLearned(request, spec, codebookLength(product, shape));
  return pageCodec({
    spec,
    shape,
    budget: budgetOf(product),
    isIdempotent: true,
    domain: domainOf(request, smoothing),
    // Profiles of Kvasir 0.1.0 have no errors.
    expectedError: request.learned[errorName(spec)] && requireLearned(request, errorName(spec), 1)[0],
    format: codebookFormat(books, product, shape),
  });
}

const errorName = (spec: string) => `${spec}.error`;
const smoothingOf = (spec: string) => `${spec}.smoothing`;
/** In profiles of Kvasir 0.1.0, all specs share the factors. */
const smoothingName = ({ spec, learned }: CodecRequest) =>
  learned[smoothingOf(spec)] ? smoothingOf(spec) : 'smoothing';

/** The smoothing factors, the codebooks under the name of the spec, and their mean squared error. */
function learn(request: LearnRequest): Learned {
  const { spec, shape, samples } = request;
  const { headDim } = shape;
  const product = productOf(request);
  const smoothing = smooths(request) ? samples.maxima.map(max => Math.max(MIN_SMOOTHING, Math.sqrt(max))) : undefined;
  const domain = domainOf(request, smoothing);
  const vectors = new Float32Array(samples.vectors.length);
  for (let offset = 0; offset < vectors.length; offset += headDim) {
    const y = Float64Array.from(samples.vectors.subarray(offset, offset + headDim));
    domain.forward(y, Math.floor(offset / headDim / samples.count), 0);
    vectors.set(y, offset);
  }
  const { books, error } = trainCodebooks(vectors, product, shape);
  return {
    ...(smoothing && { [smoothingOf(spec)]: smoothing }),
    [spec]: books,
    [errorName(spec)]: Float32Array.of(error),
  };
}

function recommendedSamples(request: UntrainedRequest): number {
  return samplesForCodebooks(productOf(request), request.shape);
}

function placeholderLearned(request: UntrainedRequest): Learned {
  const { spec, shape } = request;
  const smoothing = smooths(request) && new Float32Array(shape.kvHeads * shape.headDim).fill(1);
  const books = new Float32Array(codebookLength(productOf(request), shape));
  return {
    ...(smoothing && { [smoothingOf(spec)]: smoothing }),
    [spec]: books,
    [errorName(spec)]: new Float32Array(1),
  };
}

function productOf({ spec, match, shape: { headDim }, has }: UntrainedRequest): ProductCode {
  const [subvectorDims, bits] = [Number(match[1]), Number(match[2])];
  if (headDim % subvectorDims !== 0)
    throw new ShapeError(
      `${spec}: sub-vectors of ${subvectorDims} dims do not divide heads of ${headDim}. Choose a size that does, such as d4.`,
    );
  return { subvectorDims, bits, bookPerSubvector: has('own') };
}

const transforms = ({ side, spec }: UntrainedRequest) => side === 'key' && spec.startsWith('vec');
const smooths = (request: UntrainedRequest) => transforms(request) && !request.has('had');
const rotates = (request: UntrainedRequest) => transforms(request) && !request.has('smooth');

function domainOf(request: UntrainedRequest, smoothing: Float32Array | undefined): Domain {
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
