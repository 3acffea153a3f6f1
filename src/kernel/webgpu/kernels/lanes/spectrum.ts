/**
 * Keys of few pairs each (tri): scores straight from their coefficients, as floats. Queries are turned back to where the page
 * begins, and each pair of a key by its token's place in the page. A lane has four tokens.
 */

import type { Fragment } from '../../../fragment.ts';
import { readFour } from '../grid.ts';
import type { PageShape } from '../shape.ts';
import { ownTable } from '../tables.ts';
import { each, float } from '../text.ts';
import { type KeyPart, LOG2E, of, vectorOf, vectors, withPlus } from './attend.ts';
import { LANES } from './talk.ts';

/** Pairs that are read before the first of them is used. */
const AHEAD = 4;

export function spectrumKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const { page, turn, matrix, mean, sharedBytes, blockBytes } = fragment;
  if (page.kind !== 'spectrum' || !turn || matrix || mean || page.cosines.bits > 8 || P !== 4 * LANES) return undefined;
  const { kept, pairs, cosines, sines, scales } = page;
  if ([sharedBytes, blockBytes].some(n => n % 8 !== 0) || scales.bytes !== 2 || scales.offset % 8 !== 0)
    return undefined;
  const grids = { pairs: { offset: pairs, bits: 8, order: 'columns' as const }, cosines, sines };
  const readers = Object.entries(grids).map(([id, grid]) => readFour(`key_${id}`, { ...grid, tokens: P, dims: kept }));
  if (readers.includes(undefined)) return undefined;
  const own = ownTable(fragment);
  const shift = `vec4u(${32 - cosines.bits})`;
  const signed = (codes: string) => `vec4f(bitcast<vec4i>(${codes} << ${shift}) >> ${shift})`;
  const ahead = kept % AHEAD === 0 ? AHEAD : 1;
  const rounds = Math.ceil(D / 2 / LANES);
  const query = (Q: number, n: string, v: number) => `room[(${n}) * ${vectors(Q)} + ${v}]`;
  const term = (Q: number, u: number, j: number) => `{
        let place = ${own} + 2 * ((4 * lane + ${j}) * ${D / 2} + pairs${u}[${j}]);
        let turn = vec2f(bitcast<f32>(keyTables[place]), bitcast<f32>(keyTables[place + 1]));
        let x = fma(cosines${u}[${j}], turn.x, -(sines${u}[${j}] * turn.y));
        let y = fma(cosines${u}[${j}], turn.y, sines${u}[${j}] * turn.x);
        ${each(vectors(Q), v => `d${j}_${v} = fma(bitcast<vec4f>(${query(Q, `2 * pairs${u}[${j}]`, v)}), vec4f(x), fma(bitcast<vec4f>(${query(Q, `2 * pairs${u}[${j}] + 1`, v)}), vec4f(y), d${j}_${v}));`)} }`;
  return {
    name: `spectrum ${name}`,
    dim: D,
    words: D,
    room: Q => D * vectors(Q),
    text: () => readers.join('\n'),
    load: Q =>
      each(rounds, k =>
        each(2, h =>
          each(
            vectors(Q),
            v =>
              `let raw${k}_${h}_${v} = bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + 2 * min(lane + ${k * LANES}, ${D / 2 - 1}u) + ${h}]`)}) * (p.scale * ${LOG2E});`,
          ),
        ),
      ),
    fetch: () => `let keyScales = four_halves(keyBlock + ${scales.offset} + 8 * lane);`,
    begin: Q => `
    workgroupBarrier();
    ${each(
      rounds,
      k => `if (lane + ${k * LANES} < ${D / 2}) {
      let pair = lane + ${k * LANES};
      var turn = vec2f(1.0, 0.0);
      if (pair < ${turn.length}) { turn = turns[(data[item + 7] + page) * ${turn.length} + pair]; }
      ${each(vectors(Q), v => `${query(Q, '2 * pair', v)} = bitcast<vec4u>(fma(raw${k}_0_${v}, vec4f(turn.x), raw${k}_1_${v} * turn.y)); ${query(Q, '2 * pair + 1', v)} = bitcast<vec4u>(fma(raw${k}_1_${v}, vec4f(turn.x), -(raw${k}_0_${v} * turn.y)));`)}
    }`,
    )}
    workgroupBarrier();`,
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4f(0.0);`, ' '))}
    for (var slot = 0u; slot < ${kept}; slot += ${ahead}) {
      ${each(ahead, u => `let pairs${u} = key_pairs(keyBlock, slot + ${u}, lane); let cosines${u} = ${signed(`key_cosines(keyBlock, slot + ${u}, lane)`)}; let sines${u} = ${signed(`key_sines(keyBlock, slot + ${u}, lane)`)};`)}
      ${each(ahead, u => each(4, j => term(Q, u, j)))}
    }
    ${each(Q, q => `let dots0_${q} = vec4f(${each(4, j => of(`d${j}_`, q), ', ')});`)}`,
    score: (q, _, plus) => withPlus(`dots0_${q} * keyScales * ${float(1 / (2 ** (cosines.bits - 1) - 1))}`, plus),
  };
}
