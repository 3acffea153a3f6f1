/** Any codec as floats, value by value: what runs where nothing faster does, and in precise mode. */
import type { Fragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import { type PageShape, pageReader } from './read.ts';
import { each } from './text.ts';

/** Keys that `key` gives as an expression of t and i, times `scale`; a prepared query is its vector and a constant. */
export function floatKeys(name: string, dim: number, key: string, scale: string, query: FloatQuery): KeyPart {
  return {
    name,
    dim,
    words: query.words,
    loaded: dim + 1,
    text: Q => `${query.text ?? ''}\nvar<workgroup> query: array<f32, ${Q * (dim + 1)}>;`,
    load: `query[at] = select(bitcast<f32>(queries[origin + min(n, ${query.words - 1})])${query.factor}, ${query.constant}, n == ${dim});`,
    scores: Q => `
      ${each(Q, q => `var s${q} = 0.0;`, ' ')}
      for (var i = 0u; i < ${dim}; i++) {
        let key = ${key};
        ${each(Q, q => `s${q} = fma(query[${q * (dim + 1)} + i], key, s${q});`)}
      }
      let scale = ${scale};
      ${each(Q, q => `s${q} = fma(s${q}, scale, query[${q * (dim + 1) + dim}]);`)}`,
  };
}

export interface FloatQuery {
  words: number;
  factor: string;
  constant: string;
  text?: string;
}

/** Values that `value` gives as an expression of t and i, times `scale`. */
export const floatValues = (
  name: string,
  dim: number,
  P: number,
  value: string,
  scale: string,
  text = '',
): ValuePart => ({
  name,
  dim,
  grain: 1,
  text: () => text,
  open: '',
  each: `scores[q * ${P} + t] = weight * ${scale};`,
  close: '',
  sum: (Q, j, first, end) => `
        for (var t = ${first}; t < ${end}; t++) {
          let value = ${value};
          ${each(Q, q => `o${q}_${j} = fma(scores[${q * P} + t], value, o${q}_${j});`)}
        }`,
});

export const genericKeys = (name: string, fragment: Fragment, shape: PageShape): KeyPart =>
  floatKeys(name, fragment.codedDim, 'key_unit(keyBlock, t, i)', 'key_scale(keyPage, keyBlock, t)', {
    words: fragment.codedDim + 1,
    factor: '',
    constant: `bitcast<f32>(queries[origin + ${fragment.codedDim}])`,
    text: pageReader('key', fragment, shape),
  });

export const genericValues = (name: string, fragment: Fragment, shape: PageShape): ValuePart =>
  floatValues(
    name,
    fragment.codedDim,
    shape.pageTokens,
    'value_unit(valueBlock, t, i)',
    'value_scale(valuePage, valueBlock, t)',
    pageReader('value', fragment, shape),
  );
