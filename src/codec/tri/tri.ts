/**
 * TriAttention: keys by their spectrum. A pair f of a key's dims turns by theta_f a position, so a key at n adds
 * E_f cos(theta_f (m - n) + phi_f) to the score of a query at m. Of each key the F pairs of most energy are kept, as they
 * were before RoPE: an index, a cosine and a sine coefficient, and one scale.
 *
 * A score comes straight from the coefficients, in O(F): the query is turned back to the page's start once a page, and
 * each kept pair of it by the token's place in the page. `-rec` scores by reconstruction instead, as the check.
 */
import { ShapeError, SpecError } from '../../errors.ts';
import type { Codec, Shape } from '../codec.ts';
import { pageRelative, plain } from '../domain.ts';
import type { Family } from '../family.ts';
import { pageCodec } from '../page-codec.ts';
import { type Coefficients, triFormat } from './format.ts';
import { energyShares, keptOfGaussian } from './share.ts';

export const tri: Family = {
  title: 'TriAttention',
  pattern: /^tri([1-9]\d?)i(4|8|16)$/,
  bases: ['tri12i4', 'tri16i8', 'tri8i4'],
  variants: [{ name: 'rec', about: 'scores from reconstructed keys, not straight from coefficients', side: 'key' }],
  // It works without; the shares are for whoever chooses F.
  learns: () => false,
  learn: ({ side, shape, samples }) =>
    side === 'key' ? { 'tri.shares': Float32Array.from(energyShares(samples, shape)) } : {},
  create({ spec, match, side, shape, has }) {
    const coefficients: Coefficients = { kept: Number(match[1]), bits: Number(match[2]) };
    if (side === 'value')
      throw new SpecError(
        `${spec} is for keys: values have no spectrum. Name a codec for them too, such as ${spec}/tq4.`,
      );
    checkShape(spec, coefficients, shape);
    const format = triFormat(coefficients, shape);
    const codec = pageCodec({
      spec,
      shape,
      budget: budgetOf(coefficients, shape),
      stable: false,
      domain: shape.turn ? pageRelative(shape.headDim, shape.turn) : plain(shape.headDim),
      format,
    });
    return has('rec') ? codec : { ...codec, dots: directDots(format.score) };
  },
};

const directDots =
  (score: ReturnType<typeof triFormat>['score']): Codec['dots'] =>
  ({ vector }, page, head, tokens, out) => {
    for (let t = 0; t < tokens; t++) out[t] = score(vector, page, head, t);
  };

function checkShape(spec: string, { kept }: Coefficients, { headDim }: Shape): void {
  const pairs = headDim / 2;
  if (!Number.isInteger(pairs) || pairs > 256)
    throw new ShapeError(`${spec}: a key is made of pairs, at most 256 of them; ${headDim} dims are not.`);
  if (kept > pairs)
    throw new ShapeError(`${spec}: heads of ${headDim} dims have ${pairs} pairs, so at most tri${pairs} can be kept.`);
}

/**
 * The energy that Gaussian keys lose with their other pairs, what rounding adds to those that are kept, and the spread of
 * a few hundred keys' smallest pairs where nearly all are kept.
 */
function budgetOf({ kept, bits }: Coefficients, { headDim }: Shape): number {
  const lost = 1 - keptOfGaussian(kept, headDim / 2);
  return 1.03 * lost + 4 ** (4 - bits) * 0.012 + 5e-4;
}
