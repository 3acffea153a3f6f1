/**
 * OScaR (arXiv 2605.19660): rotate and scale tokens to one length, then quantize keys per channel like KIVI. One
 * small-norm token (a sink) no longer stretches the range of every channel in its group. Values are rotated and
 * quantized per token, without a norm.
 *
 * The rotation acts after RoPE and does not commute with it, so it is done online, to queries and keys.
 */
import type { PageFragment } from '../../kernel/fragment.ts';
import { type Affine, affineBudget, affineFormat } from '../affine.ts';
import { plain, rotated } from '../domain.ts';
import { type Family, type Request, SEED } from '../family.ts';
import { affineOf, axisOf } from '../kivi/kivi.ts';
import { type Field, layOut } from '../layout.ts';
import { type PageFormat, pageCodec } from '../page-codec.ts';
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
    { name: 'xh', about: 'one norm a token across all KV heads', side: 'key' },
    SEED,
  ],
  conflicts: [
    ['rot', 'scale'],
    ['rot', 'xh'],
  ],
  create(request) {
    const { spec, shape, side } = request;
    const affine = affineOf(request, axisOf(side));
    return pageCodec({
      spec,
      shape,
      budget: affineBudget(affine),
      stable: false,
      domain: request.has('scale')
        ? plain(shape.headDim)
        : rotated(shape.headDim, signedHadamard(shape.headDim, request.number('seed#', 0))),
      format: side === 'key' && !request.has('rot') ? tokenScaled(affine, request) : affineFormat(affine, shape),
    });
  },
};

/**
 * Keys divided by their token's L2 norm before they are quantized per channel. The norms come first in a head's block
 * (one f16 a token), or, for one norm across heads, first in the page.
 */
function tokenScaled(affine: Affine, { shape, has }: Request): PageFormat {
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
  const layout = layOut(inner.fields, kvHeads);
  return {
    fields: inner.fields,
    fragment: {
      ...(inner.fragment as PageFragment & { kind: 'affine' }),
      norms: { offset: layout.offset('norms'), bytes: f16.bytes, per },
    },
    write(heads, tokens, page) {
      const vector = (head: number, t: number) => heads[head].subarray(t * headDim, (t + 1) * headDim);
      for (let t = 0; t < tokens; t++) {
        const all = Math.sqrt(heads.reduce((sum, _, head) => sum + norm(vector(head, t)) ** 2, 0));
        heads.forEach((_, head) => {
          const bytes = layout.field(page, 'norms', head);
          f16.write(bytes, t, acrossHeads ? all : norm(vector(head, t)));
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
