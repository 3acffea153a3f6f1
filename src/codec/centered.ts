/**
 * Centered pages: the mean of a page's keys is stored with the page and subtracted before they are quantized.
 *
 * Keys have a constant part, from the model's K bias or without one. A codec that shares a scale between channels spends
 * its levels on it: where the bias is large (Qwen 2 and 2.5), nothing is left for the rest. RoPE rotates the constant with
 * the position, so no single vector fits all of a long text, but within a page it hardly moves. It costs 16 bits per
 * channel and page, 1/8 bit per value of a page of 128 tokens.
 */
import type { Shape } from './codec.ts';
import type { CodecRequest, Variant } from './family.ts';
import type { PageFormat } from './page-codec.ts';
import { type Field, layoutFields } from './page-fields.ts';
import { f16 } from './scalars.ts';

/** The variant of families whose keys are centered. */
export const RAW: Variant = { name: 'raw', about: 'as published: keys are not centered', side: 'key' };

/** Whether a codec's vectors are centered: keys are, unless the published form is asked for. */
export const isCentered = ({ side, has }: Pick<CodecRequest, 'side' | 'has'>): boolean => side === 'key' && !has('raw');

/** The format of a codec whose keys are centered. */
export const centerKeys = (request: CodecRequest, format: PageFormat): PageFormat =>
  isCentered(request) ? centered(format, request.shape) : format;

/** The format with one mean per head after its other fields: headDim x f16, in the domain of the codes. */
function centered(format: PageFormat, { headDim, kvHeads }: Shape): PageFormat {
  const field: Field = {
    name: 'means',
    bytes: kvHeads * headDim * f16.bytes,
    per: 'rest',
    about: `for each head: ${headDim} x f16, the mean of the page's vectors; the codes are of x - mean`,
  };
  const fields = [...format.fields, field];
  const layout = layoutFields(fields, kvHeads);
  return {
    ...format,
    fields,
    meansOffset: layout.offset(field.name),
    write(heads, tokens, page) {
      const means = layout.field(page, field.name, 0);
      heads.forEach((vectors, head) => {
        for (let i = 0; i < headDim; i++) {
          let sum = 0;
          for (let t = 0; t < tokens; t++) sum += vectors[t * headDim + i];
          f16.write(means, head * headDim + i, sum / Math.max(1, tokens));
          // What is stored is subtracted, so that its rounding adds no error.
          const mean = f16.read(means, head * headDim + i);
          for (let t = 0; t < tokens; t++) vectors[t * headDim + i] -= mean;
        }
      });
      format.write(heads, tokens, page);
    },
    read(page, head, token, out) {
      format.read(page, head, token, out);
      const means = layout.field(page, field.name, 0);
      for (let i = 0; i < headDim; i++) out[i] += f16.read(means, head * headDim + i);
    },
  };
}
