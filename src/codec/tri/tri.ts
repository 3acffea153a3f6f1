/**
 * TriAttention: the spectrum of keys. RoPE rotates pair f of a key's dims by theta_f per position, so a key at position n
 * adds E_f cos(theta_f (m - n) + phi_f) to the score of a query at m. The F pairs of a key with the most energy are kept,
 * as they were before RoPE: an index, a cosine and a sine coefficient, and one scale per key.
 *
 * `tri12i4` keeps 12 pairs. `tri-i4` keeps as many per layer as carry 95 % of the energy of its keys, as calibration
 * measured it; without a profile, a number that depends on RoPE and the head dimension.
 *
 * Scores are computed from the coefficients, in O(F): the query is made page-relative once per page, and its kept pairs
 * are rotated by the token's index in the page. `-rec` reconstructs the keys instead, to check the result.
 */
import { ShapeError, SpecError } from '../../util/errors.ts';
import type { Codec, Shape } from '../codec.ts';
import { identityDomain, pageRelativeDomain } from '../domain.ts';
import type { CodecRequest, Family } from '../family.ts';
import { requireLearned } from '../learned.ts';
import { pageCodec } from '../page-codec.ts';
import { defaultPairs, energyShares, gaussianEnergyShare, pairsForShare } from './energy.ts';
import { type SpectrumParams, triFormat } from './format.ts';

/** [F - 1]: the share of the energy of a layer's keys in the top F pairs. */
const SHARES = 'tri.shares';
/** The share of a layer's key energy that measured pairs carry. */
const ENERGY_SHARE = 0.95;

export const tri: Family = {
  title: 'TriAttention',
  pattern: /^tri(?:([1-9]\d?)|-)i(4|8|16)$/,
  bases: ['tri-i4', 'tri12i4', 'tri16i8', 'tri8i4'],
  variants: [{ name: 'rec', about: 'scores from reconstructed keys instead of coefficients', side: 'key' }],
  needsLearned: (_, base) => (base.startsWith('tri-') ? 'optional' : false),
  // The number of pairs of an uncalibrated model.
  placeholderLearned: () => ({}),
  learn: ({ side, shape, samples }) =>
    side === 'key' ? { [SHARES]: Float32Array.from(energyShares(samples, shape)) } : {},
  create(request) {
    const { spec, match, side, shape, learned, has } = request;
    if (side === 'value')
      throw new SpecError(
        `${spec} is for keys only: values have no spectrum. Add a codec for the values, such as ${spec}/tq4.`,
      );
    const [, count, bits] = match;
    const keptPairs = count === undefined ? measuredPairs(request) : Number(count);
    const coefficients: SpectrumParams = { keptPairs, bits: Number(bits) };
    checkShape(spec, coefficients, shape);
    const format = triFormat(coefficients, shape);
    const codec = pageCodec({
      spec,
      shape,
      budget: budgetOf(coefficients, shape),
      isIdempotent: false,
      domain: shape.ropeFrequencies
        ? pageRelativeDomain(shape.headDim, shape.ropeFrequencies)
        : identityDomain(shape.headDim),
      format,
    });
    const notice =
      count === undefined && !learned[SHARES]
        ? `${spec} keeps ${keptPairs} RoPE pairs in every layer, the default for this shape, because no profile says how ` +
          `many each layer needs. Run \`kvasir calibrate MODEL --kv ${spec}/f16\` to measure it.`
        : undefined;
    return { ...codec, notice, ...(!has('rec') && { dotKeys: directDots(format.score) }) };
  },
};

const measuredPairs = (request: CodecRequest): number =>
  request.learned[SHARES]
    ? pairsForShare(requireLearned(request, SHARES, Math.floor(request.shape.headDim / 2)), ENERGY_SHARE)
    : defaultPairs(request.shape);

const directDots =
  (score: ReturnType<typeof triFormat>['score']): Codec['dotKeys'] =>
  ({ vector }, page, head, tokens, out) => {
    for (let t = 0; t < tokens; t++) out[t] = score(vector, page, head, t);
  };

function checkShape(spec: string, { keptPairs }: SpectrumParams, { headDim }: Shape): void {
  const pairs = headDim / 2;
  if (!Number.isInteger(pairs) || pairs > 256)
    throw new ShapeError(`${spec} needs an even head dimension of at most 512; got ${headDim}.`);
  if (keptPairs > pairs)
    throw new ShapeError(`${spec}: a head of ${headDim} dims has only ${pairs} pairs. Use tri${pairs} or less.`);
}

/**
 * On Gaussian keys: the energy of the dropped pairs, the quantization error of the kept ones, and a margin for the sampling
 * noise of a few hundred keys.
 */
function budgetOf({ keptPairs, bits }: SpectrumParams, { headDim }: Shape): number {
  const lost = 1 - gaussianEnergyShare(keptPairs, headDim / 2);
  return 1.03 * lost + 4 ** (4 - bits) * 0.012 + 5e-4;
}
