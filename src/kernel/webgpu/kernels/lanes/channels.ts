/**
 * Keys with a range a channel and group of tokens (kivi, oscar) as integers. A code is a byte from its middle on, and its
 * step goes into the query: int8 queries are made anew for every group of tokens of a page.
 */

import type { Fragment } from '../../../fragment.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float, NEAREST, wordOfNearest } from '../text.ts';
import { type KeyPart, LOG2E, of, vectorOf, vectors, withPlus } from './attend.ts';
import { products } from './ints.ts';
import { dealt, LANES, ofRun, overRun } from './talk.ts';
import { askFor, type Lines, walk } from './walk.ts';

export function channelKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const { headDim: D, pageTokens: P } = shape;
  const { page, sharedBytes, blockBytes, codedDim } = fragment;
  if (page.kind !== 'affine' || page.axis !== 'channel' || page.codes.order !== 'rows' || fragment.turn)
    return undefined;
  const { codes, group, ranges, norms } = page;
  const strips = stripsOf(codes.bits, D, P);
  const aligned = [sharedBytes, blockBytes, codes.offset, ranges].every(n => n % 16 === 0);
  // A lane has four tokens of one group, and makes the queries' words of four dims.
  if (!strips || !aligned || group % 4 !== 0 || P % group !== 0 || P !== 4 * LANES || codedDim !== D || D % 4 !== 0)
    return undefined;
  if (norms && (norms.bytes !== 2 || norms.offset % 8 !== 0)) return undefined;
  // Groups of tokens have lanes side by side.
  const groups = P / group;
  const half = 2 ** (codes.bits - 1);
  const own = `(4 * lane / ${group})`;
  const words = D / 4;
  // Words of the queries that a lane makes, and what it makes them of where it has none.
  const parts = Math.ceil(words / LANES);
  const place = (k: number) => `min(lane + ${k * LANES}, ${words - 1}u)`;
  const has = (k: number) => `lane + ${k * LANES} < ${words}`;
  const raw = (Q: number, k: number, i: number, v: number) => {
    const x = `bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + 4 * ${place(k)} + ${i}]`)})`;
    return (k + 1) * LANES <= words ? x : `select(vec4f(0.0), ${x}, ${has(k)})`;
  };
  /** Word n of the queries of group d. */
  const wordAt = (Q: number, d: number | string, n: string, v: number) =>
    `room[(${d} * ${words} + ${n}) * ${vectors(Q)} + ${v}]`;
  const lines: Lines = {
    strips,
    id: 'k',
    at: `keyBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
  };
  /**
   * Queries times the steps of group d as int8, of which the largest is 127: they are made from 0 on, since what NEAREST's bits
   * add is then the same for all; and what the middles of the ranges add.
   */
  const make = (Q: number, d: number) => `
    ${each(vectors(Q), v => `var most${d}_${v} = vec4f(0.0); var added${d}_${v} = vec4f(0.0);`)}
    {
      ${each(parts, k =>
        each(
          4,
          i => `let range${k}_${i} = unpack2x16float(keyRanges${d}_${k}[${i}]);
      let middle${k}_${i} = vec4f(fma(${float(half)}, range${k}_${i}.y, range${k}_${i}.x));
      ${each(
        vectors(Q),
        v => `let x${k}_${i}_${v} = raw${k}_${i}_${v} * range${k}_${i}.y;
      most${d}_${v} = max(most${d}_${v}, abs(x${k}_${i}_${v}));
      added${d}_${v} = fma(raw${k}_${i}_${v}, middle${k}_${i}, added${d}_${v});`,
      )}`,
        ),
      )}
      ${each(vectors(Q), v => `most${d}_${v} = largest(most${d}_${v}); let unit${v} = 127.0 / max(most${d}_${v}, vec4f(1e-30));`)}
      ${each(
        parts,
        k => `if (${has(k)}) {
        ${each(4, i => each(vectors(Q), v => `let y${i}_${v} = bitcast<vec4u>(fma(x${k}_${i}_${v}, unit${v}, ${NEAREST} + 128.0));`, ' '))}
        ${each(
          vectors(Q),
          v =>
            `${wordAt(Q, d, place(k), v)} = ${wordOfNearest(
              [0, 1, 2, 3].map(i => `y${i}_${v}`),
              'vec4u',
            )} ^ vec4u(0x80808080u);`,
        )}
      }`,
      )}
    }`;
  const ofGroups = (text: (d: number) => string) => Array.from({ length: groups }, (_, d) => text(d));
  const unit = Math.LOG2E / 127 / 2 ** (8 - codes.bits);
  return {
    name: `channels ${name}`,
    dim: D,
    words: D + 1,
    room: Q => groups * words * vectors(Q),
    text: () => '',
    load: Q =>
      each(parts, k => each(4, i => each(vectors(Q), v => `let raw${k}_${i}_${v} = ${raw(Q, k, i, v)};`, ' '))),
    fetch: () => `
    ${norms ? `let keyNorms0 = four_halves(${norms.per === 'page' ? 'keyPage' : 'keyBlock'} + ${norms.offset} + 8 * lane);` : ''}
    ${each(groups, d => each(parts, k => `let keyRanges${d}_${k} = pool4[(keyBlock + ${ranges}) / 16 + ${d * words} + ${place(k)}];`, ' '))}`,
    begin: Q => `
    workgroupBarrier();
    ${each(groups, d => make(Q, d))}
    ${each(
      vectors(Q),
      v => `${dealt(
        ofGroups(d => `added${d}_${v}`),
        `added${v}`,
      )} ${overRun(`added${v}`, groups)} added${v} *= ${LOG2E};
    let scale${v} = ${ofRun(ofGroups(d => `most${d}_${v}`))} * ${float(unit)};`,
    )}
    ${askFor(lines)}
    workgroupBarrier();`,
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' '))}
    ${walk(
      lines,
      (n, words) =>
        products(
          Q,
          'I',
          words.map(({ top }) => top),
          (l, q) => of(`d${l}_`, q),
          v => wordAt(Q, own, n, v),
        ),
      { asked: true, flipped: true },
    )}
    ${each(Q, q => `let dots0_${q} = vec4f(vec4i(${each(4, j => of(`d${j}_`, q), ', ')}));`)}`,
    score: (q, _, plus) => {
      const score = `fma(dots0_${q}, vec4f(${of('scale', q)}), vec4f(${of('added', q)}))`;
      return norms ? `fma(keyNorms0, ${score}, ${plus ?? 'vec4f(0.0)'})` : withPlus(score, plus);
    },
    // Read at the end, so that nothing is kept until then.
    constant: v => `bitcast<vec4f>(vec4u(${each(4, k => `queries[origin(item, head, ${4 * v + k}u) + ${D}]`, ', ')}))`,
  };
}
