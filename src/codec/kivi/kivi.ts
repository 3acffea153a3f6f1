/**
 * KIVI (Liu et al., ICML 2024): keys per channel, because a few channels of the keys are large for every token;
 * values per token, because the output is a sum over tokens. No rotation, no table. The paper's 128 recent tokens in
 * full precision are `+recent128` of the spec.
 */
import { ShapeError } from '../../errors.ts';
import { type Affine, affineBudget, affineFormat } from '../affine.ts';
import { plain } from '../domain.ts';
import type { Family, Request } from '../family.ts';
import { pageCodec } from '../page-codec.ts';

export const kivi: Family = {
  title: 'KIVI',
  pattern: /^kivi([1248])g(16|32|64|128)$/,
  bases: ['kivi2g32', 'kivi4g32', 'kivi1g32', 'kivi8g32', 'kivi2g64', 'kivi2g128', 'kivi2g16'],
  variants: [
    { name: 'channel', about: 'ranges per channel over G tokens (what keys have anyway)' },
    { name: 'token', about: 'ranges per token over G dims (what values have anyway)' },
  ],
  conflicts: [['channel', 'token']],
  create(request) {
    const { spec, shape, side } = request;
    const axis = request.has('channel') ? 'channel' : request.has('token') ? 'token' : axisOf(side);
    const affine = affineOf(request, axis);
    return pageCodec({
      spec,
      shape,
      budget: affineBudget(affine),
      stable: true,
      domain: plain(shape.headDim),
      format: affineFormat(affine, shape),
    });
  },
};

export const axisOf = (side: 'key' | 'value') => (side === 'key' ? 'channel' : 'token');

/** The group must fit the axis it lies along. */
export function affineOf({ spec, match, side, shape }: Request, axis: Affine['axis']): Affine {
  const [bits, group] = [Number(match[1]), Number(match[2])];
  const length = axis === 'channel' ? shape.pageTokens : shape.headDim;
  if (length % group !== 0)
    throw new ShapeError(
      `${spec}: groups of ${group} do not divide ${length} ${axis === 'channel' ? 'tokens a page' : 'dims a head'} ` +
        `of the ${side}s. Choose a group that does, or a codec without groups such as tq4.`,
    );
  return { bits, group, axis, order: side === 'key' ? 'rows' : 'columns' };
}
