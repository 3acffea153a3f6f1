/** The page format of TriAttention: indices, coefficients and scales of the kept pairs. */
import type { Shape } from '../codec.ts';
import { createGrid } from '../pack.ts';
import type { PageFormat } from '../page-codec.ts';
import { type Field, layoutFields } from '../page-fields.ts';
import { f16 } from '../scalars.ts';

export interface SpectrumParams {
  /** F: pairs per key. */
  keptPairs: number;
  /** Bits per coefficient. */
  bits: number;
}

export interface TriFormat extends PageFormat {
  /** Dot product of a page-relative query with a key, computed from the key's coefficients. */
  score(query: Float32Array, page: Uint8Array, head: number, token: number): number;
}

/**
 * One head's block, all in columns (a line is the same slot of all tokens, see pack.ts), a key's pairs in ascending order:
 *   pairs     F x pageTokens bytes, the index of the pair
 *   cosines   F x pageTokens two's complement integers, the pair's first dim before RoPE: code scale / (2^(bits - 1) - 1)
 *   sines     the same for its second dim
 *   scales    pageTokens x f16, the largest magnitude of the key's coefficients
 */
export function triFormat(
  { keptPairs, bits }: SpectrumParams,
  { headDim, kvHeads, pageTokens, ropeFrequencies }: Shape,
): TriFormat {
  const pairs = headDim / 2;
  const maxCode = 2 ** (bits - 1) - 1;
  const indices = createGrid(pageTokens, keptPairs, 8, 'columns');
  const grid = createGrid(pageTokens, keptPairs, bits, 'columns');
  const column = (name: string, bytes: number, what: string): Field => ({
    name,
    bytes,
    per: 'head',
    about: `${keptPairs} x ${pageTokens} ${what} in columns`,
  });
  const fields: Field[] = [
    column('pairs', indices.bytes, 'bytes'),
    column('cosines', grid.bytes, `int${bits}`),
    column('sines', grid.bytes, `int${bits}`),
    { name: 'scales', bytes: pageTokens * f16.bytes, per: 'head', about: `${pageTokens} x f16, largest coefficient` },
  ];
  const layout = layoutFields(fields, kvHeads);
  const ropeCosSin = ropeTable(ropeFrequencies, pairs, pageTokens);
  const signed = (code: number) => (code << (32 - bits)) >> (32 - bits);

  /** Visits a key's pairs: index and coefficients. */
  const visit = (page: Uint8Array, head: number, t: number, to: (pair: number, cos: number, sin: number) => void) => {
    const [index, cosines, sines, scales] = fields.map(({ name }) => layout.field(page, name, head));
    const step = f16.read(scales, t) / maxCode;
    for (let slot = 0; slot < keptPairs; slot++) {
      const [cos, sin] = [cosines, sines].map(codes => signed(grid.read(codes, t, slot)) * step);
      to(indices.read(index, t, slot), cos, sin);
    }
  };

  return {
    fields,
    encoding: {
      kind: 'spectrum',
      keptPairs,
      pairsOffset: layout.offset('pairs'),
      cosines: { offset: layout.offset('cosines'), bits, order: 'columns' },
      sines: { offset: layout.offset('sines'), bits, order: 'columns' },
      scales: { offset: layout.offset('scales'), bytes: 2 },
      ropeCosSin,
    },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        const [index, cosines, sines, scales] = fields.map(({ name }) => layout.field(page, name, head));
        for (let t = 0; t < tokens; t++) {
          const x = vectors.subarray(t * headDim, (t + 1) * headDim);
          const chosen = largestPairs(x, keptPairs);
          // Undo the rotation from the page's start to the token: the pair before RoPE.
          const coefficients = chosen.map(pair => {
            const [c, s] = [ropeCosSin[2 * (t * pairs + pair)], ropeCosSin[2 * (t * pairs + pair) + 1]];
            const [a, b] = [x[2 * pair], x[2 * pair + 1]];
            return [a * c + b * s, b * c - a * s];
          });
          f16.write(scales, t, Math.max(...coefficients.flat().map(Math.abs)));
          const scale = f16.read(scales, t);
          const code = (value: number) =>
            scale === 0
              ? 0
              : Math.max(-maxCode, Math.min(maxCode, Math.round((value / scale) * maxCode))) & (2 ** bits - 1);
          coefficients.forEach(([cos, sin], slot) => {
            indices.write(index, t, slot, chosen[slot]);
            grid.write(cosines, t, slot, code(cos));
            grid.write(sines, t, slot, code(sin));
          });
        }
      });
    },
    read(page, head, token, out) {
      out.fill(0);
      visit(page, head, token, (pair, cos, sin) => {
        const [c, s] = [ropeCosSin[2 * (token * pairs + pair)], ropeCosSin[2 * (token * pairs + pair) + 1]];
        out[2 * pair] = cos * c - sin * s;
        out[2 * pair + 1] = cos * s + sin * c;
      });
    },
    score(query, page, head, token) {
      let sum = 0;
      visit(page, head, token, (pair, cos, sin) => {
        const [c, s] = [ropeCosSin[2 * (token * pairs + pair)], ropeCosSin[2 * (token * pairs + pair) + 1]];
        const [a, b] = [query[2 * pair], query[2 * pair + 1]];
        sum += cos * (a * c + b * s) + sin * (b * c - a * s);
      });
      return sum;
    },
  };
}

/** [token][pair]: cos and sin of the rotation from the page's start to the token. Pairs without a frequency have angle 0. */
function ropeTable(frequencies: Float64Array | undefined, pairs: number, pageTokens: number): Float32Array {
  const table = new Float32Array(2 * pairs * pageTokens);
  for (let t = 0; t < pageTokens; t++) {
    for (let pair = 0; pair < pairs; pair++) {
      const angle = (frequencies?.[pair] ?? 0) * t;
      table[2 * (t * pairs + pair)] = Math.cos(angle);
      table[2 * (t * pairs + pair) + 1] = Math.sin(angle);
    }
  }
  return table;
}

/** The pairs with the most energy, in ascending order; the lower one of equals. */
function largestPairs(x: Float64Array, count: number): number[] {
  const energy = (pair: number) => x[2 * pair] ** 2 + x[2 * pair + 1] ** 2;
  return Array.from({ length: x.length / 2 }, (_, pair) => pair)
    .sort((p, q) => energy(q) - energy(p) || p - q)
    .slice(0, count)
    .sort((p, q) => p - q);
}
