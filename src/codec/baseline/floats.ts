/** The float baselines: f16, and fp8 e4m3 with a scale of 1. Rows: a token's values are contiguous. */
import { fromFp8, toFp8 } from '../../kernel/float.ts';
import type { Shape } from '../codec.ts';
import { identityDomain } from '../domain.ts';
import type { Family } from '../family.ts';
import { type PageFormat, pageCodec } from '../page-codec.ts';
import { layoutFields } from '../page-fields.ts';
import { f16 } from '../scalars.ts';

interface Element {
  bytes: number;
  about: string;
  write(array: Uint8Array, index: number, value: number): void;
  read(array: Uint8Array, index: number): number;
}

const fp8: Element = {
  bytes: 1,
  about: 'fp8 e4m3, scale 1',
  write(array, index, value) {
    array[index] = toFp8(value);
  },
  read: (array, index) => fromFp8(array[index]),
};

export const floats: Family = {
  title: 'floats',
  pattern: /^(f16|fp8)$/,
  bases: ['f16', 'fp8'],
  variants: [],
  create({ spec, match, shape }) {
    const small = match[1] === 'fp8';
    return pageCodec({
      spec,
      shape,
      budget: small ? 7.5e-4 : 4.6e-8,
      isIdempotent: true,
      domain: identityDomain(shape.headDim),
      format: floatFormat(small ? fp8 : { ...f16, about: 'f16' }, shape),
    });
  },
};

/** One head's block: pageTokens rows of headDim floats. */
function floatFormat(element: Element, { headDim, kvHeads, pageTokens }: Shape): PageFormat {
  const fields = [
    {
      name: 'values',
      bytes: pageTokens * headDim * element.bytes,
      per: 'head' as const,
      about: `${pageTokens} rows of ${headDim} x ${element.about}`,
    },
  ];
  const layout = layoutFields(fields, kvHeads);
  return {
    fields,
    encoding: { kind: element.bytes === 2 ? 'f16' : 'fp8' },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        const values = layout.field(page, 'values', head);
        for (let i = 0; i < tokens * headDim; i++) element.write(values, i, vectors[i]);
      });
    },
    read(page, head, token, out) {
      const values = layout.field(page, 'values', head);
      for (let i = 0; i < headDim; i++) out[i] = element.read(values, token * headDim + i);
    },
  };
}
