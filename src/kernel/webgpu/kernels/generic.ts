/** Any codec as floats, value by value: what runs where nothing faster does, and in precise mode. */
import type { Fragment } from '../../fragment.ts';
import { type KeyPart, SIZE, type ValuePart } from './attend.ts';
import { markWords } from './oaken.ts';
import { type PageShape, pageReader } from './read.ts';
import { each } from './text.ts';

/** Keys that `key` gives as an expression of t and i, times `scale`; a prepared query is its vector and a constant. */
export function floatKeys(name: string, dim: number, key: string, scale: string, query: FloatQuery): KeyPart {
  return {
    name,
    dim,
    words: query.words,
    loaded: dim + 1,
    fixed: 0,
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
  fixed: 0,
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

/** Where a reader has something to do at the start of a round, when the last one is done with. */
const begins = (side: 'key' | 'value', { page }: Fragment) =>
  page.kind === 'oaken' ? `workgroupBarrier(); ${side}_mark(${side}Page, head, ${side}Block, lane);` : '';
const fixedWords = ({ page }: Fragment, shape: PageShape) => (page.kind === 'oaken' ? markWords(shape) : 0);

export const genericKeys = (name: string, fragment: Fragment, shape: PageShape): KeyPart => ({
  ...floatKeys(name, fragment.codedDim, 'key_unit(keyPage, head, t, i)', 'key_scale(keyPage, head, t)', {
    words: fragment.codedDim + 1,
    factor: '',
    constant: `bitcast<f32>(queries[origin + ${fragment.codedDim}])`,
    text: pageReader('key', fragment, shape),
  }),
  fixed: fixedWords(fragment, shape),
  begin: () => begins('key', fragment),
});

/**
 * Keys that are relative to their page: every round turns the queries back to where the page begins, and takes them into
 * the domain. `turns` has the cosine and sine of every pair at the start of every page.
 */
export function turnedKeys(name: string, fragment: Fragment, shape: PageShape, perHead: boolean): KeyPart {
  const { codedDim: C, matrix, mean, turn } = fragment;
  const { headDim: D } = shape;
  const pairs = turn!.length;
  const number = (at: string) => `bitcast<f32>(keyTables[${at}])`;
  return {
    ...genericKeys(name, fragment, shape),
    words: D,
    loaded: D,
    load: 'raw[at] = bitcast<f32>(queries[origin + n]) * p.scale;',
    buffers: ['turns: array<vec2f>'],
    text: Q => `${pageReader('key', fragment, shape)}
var<workgroup> raw: array<f32, ${Q * D}>;
var<workgroup> turned: array<f32, ${Q * D}>;
var<workgroup> query: array<f32, ${Q * (C + 1)}>;`,
    begin: Q => `
    workgroupBarrier();
    for (var n = lane; n < ${(Q * D) / 2}; n += ${SIZE}) {
      let pair = n % ${D / 2};
      var both = vec2f(raw[2 * n], raw[2 * n + 1]);
      if (pair < ${pairs}) {
        let turn = turns[(data[item + 7] + page) * ${pairs} + pair];
        both = vec2f(fma(both.x, turn.x, both.y * turn.y), fma(both.y, turn.x, -(both.x * turn.y)));
      }
      turned[2 * n] = both.x;
      turned[2 * n + 1] = both.y;
    }
    workgroupBarrier();
    for (var n = lane; n < ${Q * (C + 1)}; n += ${SIZE}) {
      let from_query = n / ${C + 1} * ${D};
      let c = n % ${C + 1};
      var sum = 0.0;
      if (c == ${C}) {
        ${mean ? `for (var i = 0u; i < ${D}; i++) { sum = fma(${number(`${matrix?.length ?? 0} + head * ${D} + i`)}, turned[from_query + i], sum); }` : ''}
      } else {
        ${
          matrix
            ? `for (var i = 0u; i < ${D}; i++) { sum = fma(${number(`${perHead ? `head * ${C * D} + ` : ''}c * ${D} + i`)}, turned[from_query + i], sum); }`
            : 'sum = turned[from_query + c];'
        }
      }
      query[n] = sum;
    }`,
  };
}

export const genericValues = (name: string, fragment: Fragment, shape: PageShape): ValuePart => ({
  ...floatValues(
    name,
    fragment.codedDim,
    shape.pageTokens,
    'value_unit(valuePage, head, t, i)',
    'value_scale(valuePage, head, t)',
    pageReader('value', fragment, shape),
  ),
  fixed: fixedWords(fragment, shape),
  begin: begins('value', fragment),
});
