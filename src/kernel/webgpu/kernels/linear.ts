/**
 * Evenly spaced codes (tq2u, tq4u) without unpacking: a code is two's complement, so one mask on a word leaves four of
 * them as int8 lanes, already shifted up, and dot4I8Packed does four products.
 *
 *   keys     in rows: four dims in a word, against an int8 query
 *   values   in columns: four tokens in a word, against weights of 14 bits, as two int8 digits
 *
 * (code + 1/2) step leaves half a step times the sum of the query, or of the weights, to be added once.
 */
import type { Fragment, PageFragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import type { PageShape } from './read.ts';
import { each, float } from './text.ts';

/** The largest weight: two digits of 7 bits. */
const MOST = 127 * 128 + 127;

type Levels = PageFragment & { kind: 'levels' };

/** A page's levels if its grid can be read so: lines of whole vectors of 16 bytes, and blocks that begin on one. */
function linear(
  { page, sharedBytes, blockBytes }: Fragment,
  order: 'rows' | 'columns',
  length: number,
): Levels | undefined {
  if (page.kind !== 'levels' || !page.uniform || page.codes.order !== order) return undefined;
  if (page.codes.bits !== 2 && page.codes.bits !== 4) return undefined;
  const aligned = [(length * page.codes.bits) / 8, sharedBytes, blockBytes, page.codes.offset].every(n => n % 16 === 0);
  return aligned ? page : undefined;
}

export const linearKeysOf = (f: Fragment, { headDim }: PageShape) => linear(f, 'rows', headDim);
export const linearValuesOf = (f: Fragment, { pageTokens }: PageShape) => linear(f, 'columns', pageTokens);

/** Lanes of a word whose code k is wanted, at the top of each byte. */
const lanes = (word: string, bits: number, k: number) => {
  const shift = 8 - bits * (k + 1);
  const mask = bits === 4 ? '0xf0f0f0f0u' : '0xc0c0c0c0u';
  return shift === 0 ? `(${word} & ${mask})` : `((${word} << ${shift}u) & ${mask})`;
};

const scalar = ({ norms }: Levels, block: string, t: string) =>
  `${norms.bytes === 2 ? 'half' : 'single'}(${block} + ${norms.offset} + (${t}) * ${norms.bytes})`;

/** Of a prepared query: packed words, then its scale, its sum and the constant (domain.ts makes them). */
export const int8Words = (dim: number) => dim / 4 + 3;

export function linearKeys(name: string, page: Levels, { headDim: D }: PageShape): KeyPart {
  const { bits, offset } = page.codes;
  const count = 8 / bits;
  const vectors = (D * bits) / 128;
  const W = D / 4;
  const step = 2 * page.levels[0];
  // What a lane's code is multiplied by, standing at the top of its byte.
  const unit = step / 2 ** (8 - bits);
  return {
    name: `int8 ${name}`,
    dim: D,
    words: int8Words(D),
    loaded: W + 3,
    fixed: 0,
    text: Q => `var<workgroup> query: array<u32, ${Q * (W + 3)}>;`,
    load: 'query[at] = queries[origin + n];',
    scores: Q => `
      ${each(Q, q => `var d${q} = 0;`, ' ')}
      let line = (keyBlock + ${offset} + t * ${(D * bits) / 8}) / 16;
      for (var v = 0u; v < ${vectors}; v++) {
        let codes = pool4[line + v];
        ${each(4, w =>
          each(
            count,
            k => `{ let c = ${lanes(`codes[${w}]`, bits, k)}; let n = v * ${4 * count} + ${4 * k + w};
        ${each(Q, q => `d${q} += dot4I8Packed(c, query[${q * (W + 3)} + n]);`, ' ')} }`,
          ),
        )}
      }
      let norm = ${scalar(page, 'keyBlock', 't')};
      ${each(Q, q => {
        const word = (n: number) => `bitcast<f32>(query[${q * (W + 3) + W + n}])`;
        const dot = `fma(f32(d${q}), ${float(unit)}, ${word(1)} * ${float(step / 2)})`;
        return `let s${q} = fma(${word(0)} * norm, ${dot}, ${word(2)});`;
      })}`,
  };
}

export function linearValues(name: string, page: Levels, { headDim: D, pageTokens: P }: PageShape): ValuePart {
  const { bits, offset } = page.codes;
  const count = 8 / bits;
  const step = 2 * page.levels[0];
  const unit = step / 2 ** (8 - bits);
  /** Tokens of a vector of codes. */
  const span = 128 / bits;
  const W = P / 4;
  const dots = (k: number, w: number, Q: number) => `{
            let c = ${lanes(`codes[${w}]`, bits, k)};
            let n = v * ${span / 4} + ${4 * k + w};
            ${each(Q, q => `high${q} += dot4I8Packed(c, high[${q * W} + n]); low${q} += dot4I8Packed(c, low[${q * W} + n]);`)}
          }`;
  return {
    name: `int8 ${name}`,
    dim: D,
    grain: span,
    fixed: 0,
    text: Q => /* wgsl */ `
var<workgroup> high: array<u32, ${Q * W}>;
var<workgroup> low: array<u32, ${Q * W}>;
var<workgroup> norms: array<f32, 32>;`,
    // A weight is at most 1, and then it is multiplied by a norm: the largest norm of the page is the scale.
    survey: {
      lane: `var most = 0.0;
      for (var t = n; t < ${P}; t += 32) { most = max(most, ${scalar(page, 'valueBlock', 't')}); }
      norms[n] = most;`,
      all: `var largest = norms[0];
    for (var n = 1u; n < 32; n++) { largest = max(largest, norms[n]); }
    let weightUnit = select(0.0, ${float(MOST)} / largest, largest > 0);
    let weightScale = largest * ${float(1 / MOST)};`,
    },
    open: 'var digits = vec2u(0);',
    each: `let whole = u32(round(weight * ${scalar(page, 'valueBlock', 't')} * weightUnit));
            digits |= vec2u(whole >> 7, whole & 127) << vec2u(8 * j);
            wholes += whole;`,
    close: `high[q * ${W} + g] = digits.x; low[q * ${W} + g] = digits.y;`,
    carry: {
      declare: k => `var carry${k} = 0.0;${k === 0 ? ' var wholes = 0u;' : ''}`,
      add: k => `carry${k} = fma(carry${k}, factor, f32(wholes) * weightScale); wholes = 0u;`,
      share: float(step / 2),
    },
    sum: (Q, j, first, end) => `
        let line = (valueBlock + ${offset} + i * ${(P * bits) / 8}) / 16;
        ${each(Q, q => `var high${q} = 0; var low${q} = 0;`, ' ')}
        for (var v = (${first}) / ${span}; v < (${end}) / ${span}; v++) {
          let codes = pool4[line + v];
          ${each(4, w => each(count, k => dots(k, w, Q)))}
        }
        ${each(Q, q => `o${q}_${j} = fma(fma(f32(high${q}), 128.0, f32(low${q})), weightScale * ${float(unit)}, o${q}_${j});`)}`,
  };
}
