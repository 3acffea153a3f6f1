/**
 * mead: calibrated transform, additive nibbles, bits where they count. Keys are turned to their page's start, so that
 * one map fits them all; each head has a map of its own (transform.ts) after which four neighbouring coefficients, a
 * quad, are the sum of 0 to 6 entries of 16-entry books (books.ts). How many is the plan's choice for the whole model;
 * alone, a codec spends its bits on its own quads (spend.ts). There is no scale, norm or zero: 2 bits are 2.000 bits.
 *
 * mead2u and its kin have a uniform code of 0 to 6 bits a coefficient in place of books: no tables.
 */
import { ShapeError, UnsupportedError } from '../../errors.ts';
import type { Shape } from '../codec.ts';
import { mapped } from '../domain.ts';
import type { Family, LearnRequest, Request } from '../family.ts';
import { type Learned, need } from '../learned.ts';
import { type Domain, type PageFormat, pageCodec } from '../page-codec.ts';
import { createRandom } from '../parts/random.ts';
import { ALL_BOOKS, BOOK, bookFormat, MOST_NIBBLES, QUAD } from './books.ts';
import { spend } from './spend.ts';
import { createTrainer } from './train.ts';
import { applyMaps, blocksOf, denseMaps, fitHead, identityMaps, mapLength, pageRelative } from './transform.ts';
import { fitSteps, MOST_BITS, uniformFormat } from './uniform.ts';

/** Squared error over squared norm of Gaussian vectors, by bits, of codes trained on a thousand others.*/
const BUDGET: Record<string, number> = { 1: 0.4, 1.5: 0.27, 2: 0.18, 2.5: 0.1, 3: 0.06, 3.5: 0.05, 4: 0.03 };

/** How much larger samples are taken that stand for text that was not seen. */
const STRETCH = 1.5;

export const mead: Family = {
  title: 'mead',
  pattern: /^mead([1-4]|[1-3]\.5)(u?)$/,
  bases: ['mead2', 'mead1', 'mead1.5', 'mead2.5', 'mead3', 'mead4', 'mead2u', 'mead3u', 'mead4u'],
  variants: [],
  learnsAlike: true,
  learn(request) {
    checkDims(request.spec, request.shape);
    return learnAll(request);
  },
  placeholder({ spec, side, shape }) {
    checkDims(spec, shape);
    const blocks = blocksOf(side, shape);
    return { ...emptyArrays(shape, blocks), 'mead.maps': identityMaps(shape.kvHeads, blocks) };
  },
  create(request) {
    const { spec, match, shape } = request;
    checkDims(spec, shape);
    return pageCodec({
      spec,
      shape,
      budget: BUDGET[match[1]] * (match[2] === 'u' ? 1.3 : 1),
      stable: false,
      domain: domainOf(request),
      format: match[2] === 'u' ? stepsOf(request) : booksOf(request),
    });
  },
};

function checkDims(spec: string, { headDim }: Shape): void {
  if (headDim % 8 !== 0) throw new ShapeError(`${spec} works on blocks of 8 dims; ${headDim} is not a multiple of 8.`);
}

function domainOf(request: Request): Domain {
  const { spec, side, shape } = request;
  const { headDim, kvHeads, turn } = shape;
  const blocks = blocksOf(side, shape);
  const mean = need(request, 'mead.mean', kvHeads * headDim);
  const maps = denseMaps(need(request, 'mead.maps', kvHeads * mapLength(blocks)), kvHeads, headDim, blocks);
  if (!maps) throw new UnsupportedError(`${spec}: the learned maps cannot be inverted. Calibrate again.`);
  return mapped(headDim, { mean, ...maps, blocks, turn: side === 'key' ? turn : undefined });
}

function booksOf(request: Request): PageFormat {
  const values = request.shape.kvHeads * request.shape.headDim;
  const counts = amountsOf(request, 'mead.loss', 'mead.nibbles', values / QUAD, MOST_NIBBLES, 4);
  return bookFormat(need(request, 'mead.books', (values / QUAD) * ALL_BOOKS * BOOK), counts, request.shape);
}

function stepsOf(request: Request): PageFormat {
  const values = request.shape.kvHeads * request.shape.headDim;
  const bits = amountsOf(request, 'mead.step-loss', 'mead.bits', values, MOST_BITS, 1);
  return uniformFormat(need(request, 'mead.steps', values * (MOST_BITS + 1)), bits, request.shape);
}

/** What a plan gave each unit; without one, this side's own bits where they help it most. */
function amountsOf(request: Request, loss: string, planned: string, units: number, most: number, unitBits: number) {
  const { spec, match, shape, learned } = request;
  if (!learned[planned]) {
    const budget = Math.floor((Number(match[1]) * shape.kvHeads * shape.headDim) / unitBits);
    return spend(need(request, loss, units * (most + 1)), most + 1, budget);
  }
  const amounts = Uint8Array.from(need(request, planned, units));
  if (amounts.some(amount => amount > most))
    throw new UnsupportedError(`${spec}: "${planned}" must hold whole numbers up to ${most}. Plan again.`);
  return amounts;
}

/** Mean and maps, and of every head's coefficients books and steps: all that any number of bits needs. */
function learnAll({ side, shape, samples }: LearnRequest): Learned {
  const { headDim: d, kvHeads } = shape;
  const { count, attention, strangers } = samples;
  const blocks = blocksOf(side, shape);
  const quads = d / QUAD;
  const levels = MOST_NIBBLES + 1;
  const learned = emptyArrays(shape, blocks);
  const { 'mead.mean': mean, 'mead.maps': maps, 'mead.books': books } = learned;
  const { 'mead.loss': loss, 'mead.steps': steps, 'mead.step-loss': stepLoss } = learned;
  const train = createTrainer(count);
  const quad = new Float32Array(QUAD * count);
  for (let head = 0; head < kvHeads; head++) {
    const y = pageRelative(samples, head, shape, side);
    const fitted = fitHead(y, samples, head, d, blocks);
    mean.set(fitted.mean, head * d);
    maps.set(fitted.maps, head * mapLength(blocks));
    for (let i = 0; i < count; i++) applyMaps(y.subarray(i * d, (i + 1) * d), fitted.maps, blocks);
    const weights = attention.slice(head * count, (head + 1) * count);
    if (strangers) stretchSome(y, weights, strangers);
    for (let unit = head * quads; unit < (head + 1) * quads; unit++) {
      const first = (unit % quads) * QUAD;
      for (let i = 0; i < quad.length; i++) quad[i] = y[(i >> 2) * d + first + (i & 3)];
      const trained = train(quad, weights, createRandom(unit));
      books.set(trained.books, unit * ALL_BOOKS * BOOK);
      loss.set(trained.loss, unit * levels);
    }
    for (let dim = 0; dim < d; dim++) {
      const of = fitSteps(count, i => y[i * d + dim], weights);
      steps.set(of.steps, (head * d + dim) * (MOST_BITS + 1));
      stepLoss.set(of.loss, (head * d + dim) * (MOST_BITS + 1));
    }
  }
  return learned;
}

function emptyArrays({ headDim, kvHeads }: Shape, blocks: readonly number[]) {
  const values = kvHeads * headDim;
  return {
    'mead.mean': new Float32Array(values),
    'mead.maps': new Float32Array(kvHeads * mapLength(blocks)),
    'mead.books': new Float32Array((values / QUAD) * ALL_BOOKS * BOOK),
    'mead.loss': new Float32Array((values / QUAD) * (MOST_NIBBLES + 1)),
    'mead.steps': new Float32Array(values * (MOST_BITS + 1)),
    'mead.step-loss': new Float32Array(values * (MOST_BITS + 1)),
  };
}

/**
 * Text of another kind has vectors that this one had not, and looks at other tokens. So one of `every` samples is
 * stretched, and weighs as the mean. Books and bits that only knew samples as they are had 1.2 times the divergence on the
 * next rows of the same text, and 1.5 times on source code.
 */
function stretchSome(y: Float64Array, weights: Float32Array, every: number): void {
  const d = y.length / weights.length;
  for (let i = 0; i < weights.length; i += every) {
    for (let j = i * d; j < (i + 1) * d; j++) y[j] *= STRETCH;
    weights[i] = 1;
  }
}
