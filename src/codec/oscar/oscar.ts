/**
 * OScaR (arXiv 2605.19660): keys are rotated, divided by their token's norm, and quantized per channel like in KIVI. A
 * token with a small norm (a sink) then does not widen the range of every channel in its group. Values are rotated and
 * quantized per token, without a norm.
 *
 * The rotation follows RoPE and does not commute with it, so it is applied to queries and keys at run time.
 */
import type { PageEncoding } from '../../kernel/page-layout.ts';
import { type AffineParams, affineBudget, affineFormat } from '../affine.ts';
import { identityDomain, rotatedDomain } from '../domain.ts';
import { type CodecRequest, type Family, SEED } from '../family.ts';
import { affineParams, defaultAxis } from '../kivi/kivi.ts';
import { type PageFormat, pageCodec } from '../page-codec.ts';
import { type Field, layoutFields } from '../page-fields.ts';
import { signedHadamard } from '../parts/rotation.ts';
import { norm } from '../parts/vector.ts';
import { f16 } from '../scalars.ts';

export const oscar: Family = {
  title: 'OScaR',
  pattern: /^oscar([1248])g(16|32|64|128)$/,
  bases: ['oscar2g32', 'oscar4g32', 'oscar1g32', 'oscar2g64', 'oscar2g128', 'oscar2g16'],
  variants: [
    { name: 'rot', about: 'ablation: rotation only' },
    { name: 'scale', about: 'ablation: token scaling only' },
    { name: 'xh', about: 'one norm per token across all KV heads', side: 'key' },
    SEED,
  ],
  conflicts: [
    ['rot', 'scale'],
    ['rot', 'xh'],
  ],
  create(request) {
    const { spec, shape, side } = request;
    const affine = affineParams(request, defaultAxis(side));
    return pageCodec({
      spec,
      shape,
      budget: affineBudget(affine),
      isIdempotent: false,
      domain: request.has('scale')
        ? identityDomain(shape.headDim)
        : rotatedDomain(shape.headDim, signedHadamard(shape.headDim, request.numberOf('seed#', 0))),
      format: side === 'key' && !request.has('rot') ? tokenScaled(affine, request) : affineFormat(affine, shape),
    });
  },
};

/**
 * Keys are divided by their token's L2 norm before they are quantized per channel. The norms, one f16 per token, are at
 * the start of a head's block, or of the page if they are shared by all heads.
 */
function tokenScaled(affine: AffineParams, { shape, has }: CodecRequest): PageFormat {
  const { headDim, kvHeads, pageTokens } = shape;
  const acrossHeads = has('xh');
  const per = acrossHeads ? 'page' : 'head';
  const norms: Field = {
    name: 'norms',
    bytes: pageTokens * f16.bytes,
    per,
    about: `${pageTokens} x f16, |x|${acrossHeads ? ' over all KV heads' : ''}; the codes below are of x / |x|`,
  };
  const inner = affineFormat(affine, shape, [norms]);
  const layout = layoutFields(inner.fields, kvHeads);
  return {
    fields: inner.fields,
    encoding: {
      ...(inner.encoding as PageEncoding & { kind: 'affine' }),
      norms: { offset: layout.offset('norms'), bytes: f16.bytes, per },
    },
    write(heads, tokens, page) {
      const vector = (head: number, t: number) => heads[head].subarray(t * headDim, (t + 1) * headDim);
      for (let t = 0; t < tokens; t++) {
        const sharedNorm = Math.sqrt(heads.reduce((sum, _, head) => sum + norm(vector(head, t)) ** 2, 0));
        heads.forEach((_, head) => {
          const bytes = layout.field(page, 'norms', head);
          f16.write(bytes, t, acrossHeads ? sharedNorm : norm(vector(head, t)));
          const stored = f16.read(bytes, t);
          vector(head, t).forEach((x, i, v) => {
            v[i] = stored > 0 ? x / stored : 0;
          });
        });
      }
      inner.write(heads, tokens, page);
    },
    read(page, head, token, out) {
      inner.read(page, head, token, out);
      const length = f16.read(layout.field(page, 'norms', head), token);
      for (let i = 0; i < headDim; i++) out[i] *= length;
    },
  };
}
