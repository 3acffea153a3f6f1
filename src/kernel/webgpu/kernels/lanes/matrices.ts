/**
 * f16 and fp8 by subgroup matrices of halves, where the adapter has them; else rows.ts reads these pages. Sixteen tokens at
 * a time, and a half of their dims, come from registers, where they were asked for ahead, into workgroup memory as halves:
 *
 *   keys     16 tokens x 16 dims by 16 dims x 8 queries. The sums go through workgroup memory to the lanes of the tokens.
 *   values   16 dims x 16 tokens by 16 tokens x 8 queries, over all tokens of the page. The sums go to the lanes of the dims.
 *
 * Where there are fewer queries, matrices have whatever lies behind them in their place: nobody reads the sums of these.
 */

import type { Fragment } from '../../../fragment.ts';
import type { AttendShape } from '../attend.ts';
import { each, most4 } from '../text.ts';
import { type KeyPart, LOG2E, of, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { LANES } from './talk.ts';

const SIDE = 16;
const QUERIES = 8;
/** Sixteens of a page's tokens, and of its dims. */
const TILES = 8;
/** Dims of a chunk, and vectors of eight halves from one of its tokens to the next: one more, so that banks differ. */
const DIMS = 64;
const STRIDE = DIMS / 8 + 1;
/** Sixteens of tokens that are on their way. */
const AHEAD = 2;

/** Before the chunk, `room` has the weights, or a matrix of keys' sums. */
const chunkAt = (Q: number) => Math.max(2 * TILES * Q, (QUERIES * SIDE) / 4);
const room = (Q: number) => chunkAt(Q) + SIDE * STRIDE;

/** How numbers become halves: vectors of 16 bytes, what they are to be multiplied by then, and the order of every four. */
interface Kind {
  bytes: number;
  halves(vector: string): string[];
  unit: number;
  order: readonly number[];
}

const KINDS: Record<string, Kind> = {
  f16: { bytes: 2, halves: v => [v], unit: 1, order: [0, 1, 2, 3] },
  fp8: {
    bytes: 1,
    halves: v => ['xy', 'zw'].map(([a, b]) => `vec4u(fp8_halves(${v}.${a}), fp8_halves(${v}.${b}))`),
    unit: 256,
    order: [0, 2, 1, 3],
  },
};

function kindOf({ page, sharedBytes, blockBytes, codedDim, turn }: Fragment, shape: AttendShape): Kind | undefined {
  const { headDim: D, pageTokens: P, group, matrices, subgroups } = shape;
  if (!matrices || subgroups !== LANES || group > QUERIES || turn) return undefined;
  if (D !== SIDE * TILES || P !== SIDE * TILES || codedDim !== D) return undefined;
  return [sharedBytes, blockBytes].every(n => n % 16 === 0) ? KINDS[page.kind] : undefined;
}

const common = {
  dim: SIDE * TILES,
  most: QUERIES,
  room,
  enable: ['f16', 'chromium_experimental_subgroup_matrix'],
};

const RESULT = `subgroup_matrix_result<f32, ${QUERIES}, ${SIDE}>`;
/** Of tokens or dims, by rows or columns; and of queries. */
const left = (order: 'row_major' | 'col_major', at: number) =>
  `subgroupMatrixLoad<subgroup_matrix_left<f16, ${SIDE}, ${SIDE}>, ${order}>(&room, ${at}, ${STRIDE})`;
const right = (at: string) =>
  `subgroupMatrixLoad<subgroup_matrix_right<f16, ${QUERIES}, ${SIDE}>, col_major>(&room, ${at}, 2)`;
const added = (sums: string, a: string, b: string) =>
  `${sums} = subgroupMatrixMultiplyAccumulate(${a}, ${b}, ${sums});`;
const stored = (sums: string, at: number) => `subgroupMatrixStore<col_major>(&room, ${at}, ${sums}, 4);`;

/** Four numbers of query q, as halves: a lane's own, in tile lane / 4, which has 16 of each query. */
const putFour = (Q: number, q: number, four: string) => `{
    let to = lane / 4 * ${2 * Q} + ${2 * q} + lane % 4 / 2;
    room[to][lane % 2 * 2] = pack2x16float(${four}.xy);
    room[to][lane % 2 * 2 + 1] = pack2x16float(${four}.zw);
  }`;

/** Chunks of a side: half h of the dims of 16 tokens, of which a lane has some vectors. */
function chunksOf(side: 'key' | 'value', { bytes, halves }: Kind) {
  const lanes = (DIMS * bytes) / 16;
  const tokens = LANES / lanes;
  const fill = (word: string, a: number, h: number, t: string) =>
    each(SIDE / tokens, n => {
      const at = `(${t} + ${tokens * n} + lane / ${lanes}) * ${2 * lanes} + ${lanes * h} + lane % ${lanes}`;
      return `${word}${side}${a}_${h}_${n} = pool4[${side}Block / 16 + ${at}];`;
    });
  const put = (Q: number, a: number, h: number) =>
    each(SIDE / tokens, n => {
      const vectors = halves(`${side}${a}_${h}_${n}`);
      return `{
        let to = ${chunkAt(Q)} + (${tokens * n} + lane / ${lanes}) * ${STRIDE} + ${vectors.length} * (lane % ${lanes});
        ${vectors.map((vector, k) => `room[to + ${k}] = ${vector};`).join(' ')}
      }`;
    });
  return {
    ask: () => each(AHEAD, a => each(2, h => fill('var ', a, h, `${SIDE * a}u`))),
    /**
     * Products of both halves of every `tile`. They are in a block of their own, since compilers would put off until then
     * what is asked for ahead.
     */
    walk: (Q: number, products: (h: number) => string, then = '') => `
    for (var first = 0u; first < ${TILES} * p.four / 4; first += ${AHEAD}) {
      ${each(
        AHEAD,
        a => `{
      let tile = first + ${a};
      let next = ${SIDE} * min(tile + ${AHEAD}, ${TILES - 1}u);
      ${each(
        2,
        h => `${put(Q, a, h)}
      ${fill('', a, h, 'next')}
      workgroupBarrier();
      if (p.four > 0) { ${products(h)} }
      workgroupBarrier();`,
      )}
      ${then}
      }`,
      )}
    }`,
  };
}

export function matrixKeys(name: string, fragment: Fragment, shape: AttendShape): KeyPart | undefined {
  const kind = kindOf(fragment, shape);
  if (!kind) return undefined;
  const { dim } = common;
  const { ask, walk } = chunksOf('key', kind);
  return {
    ...common,
    name: `matrices ${name}`,
    words: dim + 1,
    text: () => '',
    // Of a query the largest number is 1, so that halves have room for it.
    load: Q => `
  ${each(vectors(Q), v => `var most${v} = vec4f(0.0);`)}
  ${each(
    Q,
    q => `let x${q} = bitcast<vec4f>(vec4u(${kind.order.map(i => `queries[origin${q} + 4 * lane + ${i}]`).join(', ')}));
  ${of('most', q)} = ${most4(`abs(x${q})`)};`,
  )}
  ${each(
    vectors(Q),
    v => `most${v} = max(largest(most${v}), vec4f(1e-30));
  let scale${v} = most${v} * (${kind.unit} * ${LOG2E});
  let constants${v} = bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + ${dim}]`)});`,
  )}
  ${each(Q, q => `{ let y = x${q} * (1.0 / ${of('most', q)}); ${putFour(Q, q, 'y')} }`)}
  workgroupBarrier();
  ${each(TILES, k => `let query${k} = ${right(`${2 * Q * k}`)};`)}
  workgroupBarrier();`,
    sums: Q => `
    ${each(Q, q => `var dots0_${q} = vec4f(0.0);`, ' ')}
    ${ask()}
    var sums = ${RESULT}();
    ${walk(
      Q,
      h => `
      ${each(4, k => added('sums', left('row_major', chunkAt(Q) + 2 * k), `query${4 * h + k}`))}
      ${h === 1 ? `${stored('sums', 0)} sums = ${RESULT}();` : ''}`,
      `if (lane / 4 == tile) { ${each(Q, q => `dots0_${q} = bitcast<vec4f>(room[${4 * q} + lane % 4]);`, ' ')} }`,
    )}
    workgroupBarrier();`,
    score: (q, c, plus) => withPlus(`dots${c}_${q} * vec4f(${of('scale', q)})`, plus),
    constant: v => `constants${v}`,
  };
}

/** Matrices of sums that the room of a chunk holds at once. */
const AT_ONCE = 4;
const SUMS = (QUERIES * SIDE) / 4;

export function matrixValues(name: string, fragment: Fragment, shape: AttendShape): ValuePart | undefined {
  const kind = kindOf(fragment, shape);
  if (!kind) return undefined;
  const { ask, walk } = chunksOf('value', kind);
  /** Lanes of four neighbours have their weights; others get them from those that do. */
  const neighbours = (Q: number, at: (c: number, j: number) => string) => `
    ${each(4, j => `{ let t = ${at(0, j)}; ${each(Q, q => `room[${LANES * q} + t / 4][t % 4] = bitcast<u32>(w0_${q}[${j}]);`, ' ')} }`)}
    workgroupBarrier();
    ${each(Q, q => `let v${q} = bitcast<vec4f>(room[${LANES * q} + lane]);`, ' ')}
    workgroupBarrier();`;
  return {
    ...common,
    name: `matrices ${name}`,
    text: () => '',
    ask,
    sum: (Q, { strided, at }) => `
    ${strided ? neighbours(Q, at) : ''}
    ${each(Q, q => putFour(Q, q, strided ? `v${q}` : `w0_${q}`))}
    ${each(TILES, n => `var sums${n} = ${RESULT}();`)}
    ${walk(
      Q,
      h => `let weights = ${right(`tile * ${2 * Q}`)};
      ${each(4, n => added(`sums${4 * h + n}`, left('col_major', chunkAt(Q) + 2 * n), 'weights'))}`,
    )}
    ${each(Q, q => `var got${q} = vec4f(0.0);`, ' ')}
    ${each(
      TILES / AT_ONCE,
      m => `${each(AT_ONCE, n => stored(`sums${AT_ONCE * m + n}`, chunkAt(Q) + SUMS * n))}
    workgroupBarrier();
    if (lane / ${4 * AT_ONCE} == ${m}) {
      let from_sums = ${chunkAt(Q)} + lane / 4 % ${AT_ONCE} * ${SUMS} + lane % 4;
      ${each(Q, q => `got${q} = bitcast<vec4f>(room[from_sums + ${4 * q}]);`, ' ')}
    }
    workgroupBarrier();`,
    )}
    ${each(vectors(Q), v => `let unit${v} = whole${v} * ${kind.unit}.0;`)}
    ${each(4, j => each(vectors(Q), v => `o0_${j}_${v} = fma(vec4f${vectorOf(Q, v, q => `got${q}[${kind.order[j]}]`)}, unit${v}, o0_${j}_${v} * kept${v});`, ' '))}`,
  };
}
