/**
 * Any codec as floats. Where a token's values lie side by side, lanes read eight of them at a time; where a dim's do,
 * those of four tokens (read.ts has both). What runs where integers do not, and in precise mode.
 */

import type { Fragment, PageFragment } from '../../fragment.ts';
import type { KeyPart, ValuePart } from './attend.ts';
import { readFour } from './grid.ts';
import { inOrder, type Place, pageReader } from './read.ts';
import { type PageShape, SIZE } from './shape.ts';
import { ownTable } from './tables.ts';
import { each } from './text.ts';
import { turning } from './turn.ts';

/** Lanes of a token where eight dims are read at a time, and of a dim where four tokens are. */
const PARTS = 4;
const LANES = SIZE / PARTS;
/** Tokens that are read before the first of them is used. */
const AHEAD = 4;

/** What the loops want to know of what they read. `eight` and `four` are the beginnings of calls. */
export interface Floats {
  name: string;
  dim: number;
  tokens: number;
  /** `NAME_eight(ARGUMENTS t, c)` or `NAME_four(ARGUMENTS i, g)`. */
  call: string;
  by: 'eight' | 'four';
  place: Place;
  /** Factors of tokens 4 g to 4 g + 3. */
  scale: string;
  text: string;
  setup: string;
  begin: string;
}

interface Query {
  words: number;
  /** Dim n of a query as it lies in `queries`, and the constant. */
  at: string;
  constant: string;
}

const queryText = (dim: number, Q: number, by: Floats['by']) => {
  const vectors = by === 'eight' ? 2 * Math.ceil(dim / 8) * Q : dim * Math.ceil(Q / 4);
  return `var<workgroup> query: array<vec4f, ${vectors}>;\nvar<workgroup> constants: array<f32, ${Q}>;`;
};

/** Where dim n of query q lies in workgroup memory. */
const queryPlace = ({ by, place }: Floats, Q: number) =>
  by === 'eight'
    ? `query[((${place.eight('n / 4')}) * ${Q} + q) * 2 + ${place.half('n / 4')}][n % 4]`
    : `query[n * ${Math.ceil(Q / 4)} + q / 4][q % 4]`;

export function floatKeys(floats: Floats, query: Query): KeyPart {
  const { name, dim: C, tokens: P, call, by, scale } = floats;
  const rounds = Math.ceil(P / LANES);
  const chunks = Math.ceil(P / 4 / 32);
  const E = Math.ceil(C / 8);
  const eights = (Q: number) => `{
      let part = lane % ${PARTS};
      ${each(rounds, k => `let t${k} = min(lane / ${PARTS} + ${k * LANES}, ${P - 1}u); ${each(Q, q => `var a${k}_${q} = 0.0;`, ' ')}`)}
      for (var first_eight = part; first_eight < ${E}; first_eight += ${2 * PARTS}) {
        ${each(2, u => `let c${u} = min(first_eight + ${u * PARTS}, ${E - 1}u); ${each(rounds, k => `let e${k}_${u} = ${call} t${k}, c${u});`, ' ')}`)}
        ${each(
          2,
          u => `if (first_eight + ${u * PARTS} < ${E}) {
        ${each(Q, q => `let x${q} = query[(c${u} * ${Q} + ${q}) * 2]; let y${q} = query[(c${u} * ${Q} + ${q}) * 2 + 1];`)}
        ${each(
          rounds,
          k => `${each(4, j => each(Q, q => `a${k}_${q} = fma(x${q}[${j}], e${k}_${u}.low[${j}], a${k}_${q});`, ' '))}
        ${each(4, j => each(Q, q => `a${k}_${q} = fma(y${q}[${j}], e${k}_${u}.high[${j}], a${k}_${q});`, ' '))}`,
        )} }`,
        )}
      }
      ${each(rounds, k => each(Q, q => `put(part, ${q}, t${k}, a${k}_${q});`, ' '))}
    }`;
  const fours = (Q: number) => `{
      let part = lane / 32;
      ${each(chunks, c => `let g${c} = min(lane % 32 + ${32 * c}, ${P / 4 - 1}u); ${each(Q, q => `var a${c}_${q} = vec4f(0.0);`, ' ')}`)}
      for (var i = part * ${Math.ceil(C / PARTS)}; i < min(${C}u, (part + 1) * ${Math.ceil(C / PARTS)}); i++) {
        ${each(Math.ceil(Q / 4), v => `let x${v} = query[i * ${Math.ceil(Q / 4)} + ${v}];`, ' ')}
        ${each(
          chunks,
          c => `{ let e = ${call} i, g${c});
        ${each(Q, q => `a${c}_${q} = fma(vec4f(x${q >> 2}[${q & 3}]), e, a${c}_${q});`, ' ')} }`,
        )}
      }
      ${each(chunks, c => each(Q, q => `put4(part, ${q}, g${c}, a${c}_${q});`, ' '))}
    }`;
  return {
    name,
    dim: C,
    words: query.words,
    taken: C + 1,
    parts: PARTS,
    setup: floats.setup,
    begin: () => floats.begin,
    text: Q => `${floats.text}\n${queryText(C, Q, by)}`,
    load: Q => `if (n < ${C}) { ${queryPlace(floats, Q)} = ${query.at}; } else { constants[q] = ${query.constant}; }`,
    sums: by === 'eight' ? eights : fours,
    score: () => `fma(dots, ${scale}, vec4f(constants[q]))`,
  };
}

export function floatValues(floats: Floats): ValuePart {
  const { name, dim: C, tokens: P, call, by, place, scale } = floats;
  const V = (Q: number) => Math.ceil(Q / 4);
  const common = {
    name,
    dim: C,
    setup: floats.setup,
    begin: () => floats.begin,
  };
  if (by === 'eight') {
    const row = Math.ceil(C / 8);
    const shares = Math.max(1, Math.floor(SIZE / row));
    // Two calls a lane where a row takes more than all of them.
    const columns = Math.ceil(row / SIZE);
    const slot = shares > 1 ? `lane / ${row}` : '0u';
    const chunk = (j: number) => (shares > 1 ? `lane % ${row}` : `lane + ${j * SIZE}`);
    return {
      ...common,
      shares,
      share: slot,
      text: Q => `${floats.text}\nvar<workgroup> weighed: array<vec4f, ${P * V(Q)}>;`,
      weigh: Q => `let w = weights * (${scale}) * whole;
        ${each(4, j => `weighed[(4 * g + ${j}) * ${V(Q)} + q / 4][q % 4] = w[${j}];`)}`,
      declare: Q =>
        each(columns, j => each(Q, q => `var low${j}_${q} = vec4f(0.0); var high${j}_${q} = vec4f(0.0);`, ' ')),
      sum: Q => `{
      let slot = ${slot};
      ${each(columns, j => each(Q, q => `low${j}_${q} *= factors[${q}]; high${j}_${q} *= factors[${q}];`, ' '))}
      for (var next_token = slot; next_token < select(0u, ${P}u, slot < ${shares}); next_token += ${shares * AHEAD}) {
        ${each(
          columns,
          j => `if (${chunk(j)} < ${row}) {
        ${each(AHEAD, u => `let e${u} = ${call} min(next_token + ${u * shares}, ${P - 1}u), ${chunk(j)});`)}
        ${each(
          AHEAD,
          u => `if (next_token + ${u * shares} < ${P}) {
        ${each(V(Q), v => `let w${v} = weighed[(next_token + ${u * shares}) * ${V(Q)} + ${v}];`, ' ')}
        ${each(Q, q => `low${j}_${q} = fma(vec4f(w${q >> 2}[${q & 3}]), e${u}.low, low${j}_${q}); high${j}_${q} = fma(vec4f(w${q >> 2}[${q & 3}]), e${u}.high, high${j}_${q});`)} }`,
        )} }`,
        )}
      }
    }`,
      keep: Q =>
        each(
          columns,
          j => `if (${slot} < ${shares} && ${chunk(j)} < ${row}) {
    let first = vec2u(${place.first(chunk(j), 0)}, ${place.first(chunk(j), 1)});
    for (var k = 0u; k < 4; k++) {
      ${each(Q, q => `if (first.x + k < ${C}) { keep(${q}, first.x + k, low${j}_${q}[k]); }`)}
      ${each(Q, q => `if (first.y + k < ${C}) { keep(${q}, first.y + k, high${j}_${q}[k]); }`)}
    }
  }`,
        ),
    };
  }
  const columns = Math.ceil(C / LANES);
  return {
    ...common,
    shares: PARTS,
    share: `lane % ${PARTS}`,
    text: Q => `${floats.text}\nvar<workgroup> weighed: array<vec4f, ${(Q * P) / 4}>;`,
    weigh: () => `weighed[q * ${P / 4} + g] = weights * (${scale}) * whole;`,
    declare: Q => each(Q, q => each(columns, k => `var o${q}_${k} = 0.0;`, ' ')),
    sum: Q => `{
      ${each(Q, q => each(columns, k => `o${q}_${k} *= factors[${q}];`, ' '))}
      for (var g = lane % ${PARTS}; g < ${P / 4}; g += ${PARTS}) {
        ${each(Q, q => `let w${q} = weighed[${(q * P) / 4} + g];`, ' ')}
        ${each(
          columns,
          k => `{ let e = ${call} min(lane / ${PARTS} + ${k * LANES}, ${C - 1}u), g);
        ${each(Q, q => `o${q}_${k} = fma(w${q}.x, e.x, fma(w${q}.y, e.y, fma(w${q}.z, e.z, fma(w${q}.w, e.w, o${q}_${k}))));`)} }`,
        )}
      }
    }`,
    keep: Q =>
      each(columns, k =>
        each(
          Q,
          q => `if (lane / ${PARTS} + ${k * LANES} < ${C}) { keep(${q}, lane / ${PARTS} + ${k * LANES}, o${q}_${k}); }`,
        ),
      ),
  };
}

function pageFloats(side: 'key' | 'value', name: string, fragment: Fragment, shape: PageShape): Floats {
  const reader = pageReader(side, fragment, shape);
  const oaken = fragment.page.kind === 'oaken';
  return {
    name,
    dim: fragment.codedDim,
    tokens: shape.pageTokens,
    call: `${side}_${reader.by}(${side}Page, head,`,
    by: reader.by,
    place: reader.place ?? inOrder,
    scale: `${side}_scales(${side}Page, head, g)`,
    text: reader.text,
    setup: reader.setup ?? '',
    // When the last round is done with.
    begin: oaken ? `workgroupBarrier(); ${side}_mark(${side}Page, head, ${side}Block, lane); workgroupBarrier();` : '',
  };
}

export const floatPageKeys = (name: string, fragment: Fragment, shape: PageShape): KeyPart =>
  floatKeys(pageFloats('key', name, fragment, shape), {
    words: fragment.codedDim + 1,
    at: 'bitcast<f32>(queries[origin + n])',
    constant: `bitcast<f32>(queries[origin + ${fragment.codedDim}])`,
  });

export const floatPageValues = (name: string, fragment: Fragment, shape: PageShape): ValuePart =>
  floatValues(pageFloats('value', name, fragment, shape));

type Spectrum = PageFragment & { kind: 'spectrum' };

/** Keys of few pairs each: scores straight from the coefficients. A lane has four tokens and every fourth slot. */
function spectrumSums(
  { kept, pairs, cosines, sines }: Spectrum,
  fragment: Fragment,
  { headDim: D, pageTokens: P }: PageShape,
) {
  const own = ownTable(fragment);
  const V = (Q: number) => Math.ceil(Q / 4);
  const shift = `vec4u(${32 - cosines.bits})`;
  const signed = (id: string) => `vec4f(bitcast<vec4i>(key_four_${id}(keyBlock, slot, g) << ${shift}) >> ${shift})`;
  const grids = { pairs: { offset: pairs, bits: 8, order: 'columns' as const }, cosines, sines };
  const text = Object.entries(grids)
    .map(([id, grid]) => readFour(`key_four_${id}`, { ...grid, tokens: P, dims: kept }))
    .join('\n');
  return {
    text,
    sums: (Q: number) => `{
      let part = lane / 32;
      let g = min(lane % 32, ${P / 4 - 1}u);
      ${each(Q, q => `var a${q} = vec4f(0.0);`, ' ')}
      for (var slot = part; slot < ${kept}; slot += ${PARTS}) {
        let pairs = key_four_pairs(keyBlock, slot, g);
        let cosines = ${signed('cosines')};
        let sines = ${signed('sines')};
        ${each(
          4,
          j => `{
          let turn_at = ${own} + 2 * ((4 * g + ${j}) * ${D / 2} + pairs[${j}]);
          let turn = vec2f(bitcast<f32>(keyTables[turn_at]), bitcast<f32>(keyTables[turn_at + 1]));
          let x = fma(cosines[${j}], turn.x, -(sines[${j}] * turn.y));
          let y = fma(cosines[${j}], turn.y, sines[${j}] * turn.x);
          ${each(Q, q => `a${q}[${j}] = fma(query[2 * pairs[${j}] * ${V(Q)} + ${q >> 2}][${q & 3}], x, fma(query[(2 * pairs[${j}] + 1) * ${V(Q)} + ${q >> 2}][${q & 3}], y, a${q}[${j}]));`)}
        }`,
        )}
      }
      ${each(Q, q => `put4(part, ${q}, g, a${q});`, ' ')}
    }`,
  };
}

/** Keys that are relative to their page: queries go into the domain page by page. */
export function turnedKeys(name: string, fragment: Fragment, shape: PageShape, perHead: boolean): KeyPart {
  const floats = pageFloats('key', name, fragment, shape);
  const { page } = fragment;
  const keys = floatPageKeys(name, fragment, shape);
  const quick =
    page.kind === 'spectrum' && page.cosines.bits <= 8 && shape.pageTokens <= 128
      ? spectrumSums(page, fragment, shape)
      : undefined;
  const turned = turning(fragment, shape, perHead);
  return {
    ...keys,
    ...turned.part,
    text: Q => `${keys.text(Q)}\n${turned.text(Q)}\n${quick?.text ?? ''}`,
    sums: quick?.sums ?? keys.sums,
    begin: Q => `
    ${floats.begin}
    ${turned.begin(Q, `${queryPlace(floats, Q)} = sum;`, 'constants[q] = sum;')}
    workgroupBarrier();`,
  };
}
