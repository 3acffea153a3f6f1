/**
 * KIVI (Liu et al., ICML 2024): keys are quantized per channel, because a few channels are large in every token; values
 * per token, because the output is a sum over tokens. No rotation, no codebook. The paper keeps 128 recent tokens in full
 * precision: add `+recent128` to the spec.
 */
import { ShapeError } from '../../util/errors.ts';
import { type AffineParams, affineBudget, affineFormat } from '../affine.ts';
import type { Side } from '../codec.ts';
import { identityDomain } from '../domain.ts';
import type { CodecRequest, Family } from '../family.ts';
import { pageCodec } from '../page-codec.ts';

export const kivi: Family = {
  title: 'KIVI',
  pattern: /^kivi([1248])g(16|32|64|128)$/,
  bases: ['kivi2g32', 'kivi4g32', 'kivi1g32', 'kivi8g32', 'kivi2g64', 'kivi2g128', 'kivi2g16'],
  variants: [
    { name: 'channel', about: 'ranges per channel over G tokens (the default for keys)' },
    { name: 'token', about: 'ranges per token over G dims (the default for values)' },
  ],
  conflicts: [['channel', 'token']],
  create(request) {
    const { spec, shape, side } = request;
    const axis = request.has('channel') ? 'channel' : request.has('token') ? 'token' : defaultAxis(side);
    const affine = affineParams(request, axis);
    return pageCodec({
      spec,
      shape,
      budget: affineBudget(affine),
      isIdempotent: true,
      domain: identityDomain(shape.headDim),
      format: affineFormat(affine, shape),
    });
  },
};

export const defaultAxis = (side: Side) => (side === 'key' ? 'channel' : 'token');

export function affineParams({ spec, match, side, shape }: CodecRequest, axis: AffineParams['axis']): AffineParams {
  const [bits, groupSize] = [Number(match[1]), Number(match[2])];
  const length = axis === 'channel' ? shape.pageTokens : shape.headDim;
  if (length % groupSize !== 0)
    throw new ShapeError(
      `${spec}: groups of ${groupSize} do not divide ${length} ${axis === 'channel' ? 'tokens per page' : 'dims per head'} ` +
        `of the ${side}s. Choose a group that does, or a codec without groups such as tq4.`,
    );
  return { bits, groupSize, axis, order: side === 'key' ? 'rows' : 'columns' };
}
