/**
 * mead: a calibrated transform, additive codebooks, and bits allocated by sensitivity. Keys are page-relative, so that one
 * matrix per head fits all positions (transform.ts). After it, four neighbouring coefficients, a quad, are the sum of 0 to
 * 6 entries of 16-entry codebooks (additive.ts). A plan chooses the number of entries for the whole model; without one, a
 * codec allocates its own bits (allocate-bits.ts). There are no scales, norms or zeros: 2 bits are 2.000 bits.
 *
 * mead2u, mead3u and mead4u have a uniform code of 0 to 6 bits per coefficient instead of codebooks.
 */
import { ShapeError, UnsupportedError } from '../../util/errors.ts';
import type { Shape } from '../codec.ts';
import { linearMapDomain } from '../domain.ts';
import type { CodecRequest, Family, LearnRequest } from '../family.ts';
import { type Learned, requireLearned } from '../learned.ts';
import { type Domain, type PageFormat, pageCodec } from '../page-codec.ts';
import { createRandom } from '../parts/random.ts';
import { additiveFormat, BOOK_LENGTH, MAX_NIBBLES, QUAD, TOTAL_BOOKS } from './additive.ts';
import { allocateBits } from './allocate-bits.ts';
import { createTrainer } from './train.ts';
import {
  applyMaps,
  fitTransform,
  identityMaps,
  mapLength,
  toDenseMaps,
  toPageRelative,
  transformBlocks,
} from './transform.ts';
import { fitSteps, MAX_BITS, uniformFormat } from './uniform.ts';

/** Relative squared error on Gaussian vectors, by bits, after training on a thousand others. */
const BUDGET: Record<string, number> = { 1: 0.4, 1.5: 0.27, 2: 0.18, 2.5: 0.1, 3: 0.06, 3.5: 0.05, 4: 0.03 };

/** Factor on the samples that represent unseen text. */
const STRETCH = 1.5;

export const mead: Family = {
  title: 'mead',
  pattern: /^mead([1-4]|[1-3]\.5)(u?)$/,
  bases: ['mead2', 'mead1', 'mead1.5', 'mead2.5', 'mead3', 'mead4', 'mead2u', 'mead3u', 'mead4u'],
  variants: [],
  sharesLearned: true,
  learn(request) {
    checkDims(request.spec, request.shape);
    return learnAll(request);
  },
  placeholderLearned({ spec, side, shape }) {
    checkDims(spec, shape);
    const blocks = transformBlocks(side, shape);
    return { ...emptyArrays(shape, blocks), 'mead.maps': identityMaps(shape.kvHeads, blocks) };
  },
  create(request) {
    const { spec, match, shape } = request;
    checkDims(spec, shape);
    return pageCodec({
      spec,
      shape,
      budget: BUDGET[match[1]] * (match[2] === 'u' ? 1.3 : 1),
      isIdempotent: false,
      domain: createDomain(request),
      ...(match[2] === 'u' ? { format: createUniformFormat(request) } : createBookFormat(request)),
    });
  },
};

function checkDims(spec: string, { headDim }: Shape): void {
  if (headDim % 8 !== 0)
    throw new ShapeError(`${spec} needs a head dimension that is a multiple of 8; got ${headDim}. Use tq4 instead.`);
}

function createDomain(request: CodecRequest): Domain {
  const { spec, side, shape } = request;
  const { headDim, kvHeads, ropeFrequencies } = shape;
  const blocks = transformBlocks(side, shape);
  const mean = requireLearned(request, 'mead.mean', kvHeads * headDim);
  const maps = toDenseMaps(requireLearned(request, 'mead.maps', kvHeads * mapLength(blocks)), kvHeads, headDim, blocks);
  if (!maps) throw new UnsupportedError(`${spec}: the learned maps cannot be inverted. Calibrate again.`);
  return linearMapDomain(headDim, {
    mean,
    ...maps,
    diagonalBlocks: blocks,
    ropeFrequencies: side === 'key' ? ropeFrequencies : undefined,
  });
}

function createBookFormat(request: CodecRequest): { format: PageFormat; expectedError?: number } {
  const quads = (request.shape.kvHeads * request.shape.headDim) / QUAD;
  const booksPerQuad = allocationOf(request, 'mead.loss', 'mead.nibbles', quads, MAX_NIBBLES, 4);
  const books = requireLearned(request, 'mead.books', quads * TOTAL_BOOKS * BOOK_LENGTH);
  const format = additiveFormat(books, booksPerQuad, request.shape);
  // Profiles of Kvasir 0.1.0 have no errors.
  if (!request.learned['mead.error']) return { format };
  const errors = requireLearned(request, 'mead.error', quads * (MAX_NIBBLES + 1));
  const expectedError = booksPerQuad.reduce((sum, n, quad) => sum + errors[quad * (MAX_NIBBLES + 1) + n], 0);
  return { format, expectedError };
}

function createUniformFormat(request: CodecRequest): PageFormat {
  const values = request.shape.kvHeads * request.shape.headDim;
  const bits = allocationOf(request, 'mead.step-loss', 'mead.bits', values, MAX_BITS, 1);
  return uniformFormat(requireLearned(request, 'mead.steps', values * (MAX_BITS + 1)), bits, request.shape);
}

/** The amount of each unit: from the plan, or, without one, from this side's own budget. */
function allocationOf(
  request: CodecRequest,
  lossName: string,
  plannedName: string,
  units: number,
  maxAmount: number,
  unitBits: number,
) {
  const { spec, match, shape, learned } = request;
  if (!learned[plannedName]) {
    const budget = Math.floor((Number(match[1]) * shape.kvHeads * shape.headDim) / unitBits);
    return allocateBits(requireLearned(request, lossName, units * (maxAmount + 1)), maxAmount + 1, budget);
  }
  const amounts = Uint8Array.from(requireLearned(request, plannedName, units));
  if (amounts.some(amount => amount > maxAmount))
    throw new UnsupportedError(
      `${spec}: "${plannedName}" must hold whole numbers up to ${maxAmount}. Create the plan again.`,
    );
  return amounts;
}

/** Trains the mean, maps, codebooks and steps for all bit widths. */
function learnAll({ side, shape, samples }: LearnRequest): Learned {
  const { headDim: d, kvHeads } = shape;
  const { count, attentionWeights, stretchEvery } = samples;
  const blocks = transformBlocks(side, shape);
  const quads = d / QUAD;
  const levels = MAX_NIBBLES + 1;
  const learned = emptyArrays(shape, blocks);
  const { 'mead.mean': mean, 'mead.maps': maps, 'mead.books': books } = learned;
  const { 'mead.loss': loss, 'mead.error': error, 'mead.steps': steps, 'mead.step-loss': stepLoss } = learned;
  const train = createTrainer(count, stretchEvery);
  const quad = new Float32Array(QUAD * count);
  for (let head = 0; head < kvHeads; head++) {
    const y = toPageRelative(samples, head, shape, side);
    const fitted = fitTransform(y, samples, head, d, blocks);
    mean.set(fitted.mean, head * d);
    maps.set(fitted.maps, head * mapLength(blocks));
    for (let i = 0; i < count; i++) applyMaps(y.subarray(i * d, (i + 1) * d), fitted.maps, blocks);
    const weights = attentionWeights.slice(head * count, (head + 1) * count);
    if (stretchEvery) stretchSamples(y, weights, stretchEvery);
    for (let unit = head * quads; unit < (head + 1) * quads; unit++) {
      const first = (unit % quads) * QUAD;
      for (let i = 0; i < quad.length; i++) quad[i] = y[(i >> 2) * d + first + (i & 3)];
      const trained = train(quad, weights, createRandom(unit));
      books.set(trained.books, unit * TOTAL_BOOKS * BOOK_LENGTH);
      loss.set(trained.loss, unit * levels);
      error.set(trained.error, unit * levels);
    }
    for (let dim = 0; dim < d; dim++) {
      const fittedSteps = fitSteps(count, i => y[i * d + dim], weights);
      steps.set(fittedSteps.steps, (head * d + dim) * (MAX_BITS + 1));
      stepLoss.set(fittedSteps.loss, (head * d + dim) * (MAX_BITS + 1));
    }
  }
  return learned;
}

function emptyArrays({ headDim, kvHeads }: Shape, blocks: readonly number[]) {
  const values = kvHeads * headDim;
  return {
    'mead.mean': new Float32Array(values),
    'mead.maps': new Float32Array(kvHeads * mapLength(blocks)),
    'mead.books': new Float32Array((values / QUAD) * TOTAL_BOOKS * BOOK_LENGTH),
    'mead.loss': new Float32Array((values / QUAD) * (MAX_NIBBLES + 1)),
    'mead.error': new Float32Array((values / QUAD) * (MAX_NIBBLES + 1)),
    'mead.steps': new Float32Array(values * (MAX_BITS + 1)),
    'mead.step-loss': new Float32Array(values * (MAX_BITS + 1)),
  };
}

/**
 * Data augmentation: every n-th sample is stretched and gets the mean weight, to represent text with other vectors and
 * other attention. Without it the divergence is 1.2 times as large on other rows of the same text, and 1.5 times on source
 * code.
 */
function stretchSamples(y: Float64Array, weights: Float32Array, every: number): void {
  const d = y.length / weights.length;
  for (let i = 0; i < weights.length; i += every) {
    for (let j = i * d; j < (i + 1) * d; j++) y[j] *= STRETCH;
    weights[i] = 1;
  }
}
