/**
 * Keys with a range a channel and group of tokens (kivi, oscar) as integers. A code is a byte from its middle on, and its
 * step goes into the query: int8 queries are made anew for every group of tokens of a page.
 */

import type { Fragment } from '../../../fragment.ts';
import type { PageShape } from '../shape.ts';
import { stripsOf } from '../strips.ts';
import { each, float, NEAREST } from '../text.ts';
import { type KeyPart, LOG2E, of, vectorOf, vectors, withPlus } from './attend.ts';
import { products } from './ints.ts';
import { LANES } from './talk.ts';
import { type Lines, walk } from './walk.ts';

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
  const groups = P / group;
  const half = 2 ** (codes.bits - 1);
  const own = `(4 * lane / ${group})`;
  const words = D / 4;
  /** Word n of the queries of group d, and what they are multiplied by and what is added. */
  const wordAt = (Q: number, d: string, place: string, v: number) =>
    `room[((${d}) * ${words} + ${place}) * ${vectors(Q)} + ${v}]`;
  const lines: Lines = {
    strips,
    id: 'k',
    at: `keyBlock + ${codes.offset}`,
    places: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
  };
  const make = (Q: number) => `
    workgroupBarrier();
    for (var d = 0u; d < ${groups}; d++) {
      ${each(vectors(Q), v => `var most${v} = vec4f(0.0); var added${v} = vec4f(0.0);`)}
      ${each(
        Math.ceil(words / LANES),
        k => `let n${k} = min(lane + ${k * LANES}, ${words - 1}u);
      let ranges${k} = pool4[(keyBlock + ${ranges}) / 16 + d * ${words} + n${k}];
      let own${k} = lane + ${k * LANES} < ${words};
      ${each(4, i => each(vectors(Q), v => `let x${k}_${i}_${v} = select(vec4f(0.0), raw${k}_${i}_${v}, own${k});`, ' '))}
      ${each(4, i => `let range${k}_${i} = unpack2x16float(ranges${k}[${i}]);`, ' ')}
      ${each(4, i => each(vectors(Q), v => `most${v} = max(most${v}, abs(x${k}_${i}_${v} * range${k}_${i}.y)); added${v} = fma(x${k}_${i}_${v}, vec4f(fma(${float(half)}, range${k}_${i}.y, range${k}_${i}.x)), added${v});`, ' '))}`,
      )}
      ${each(vectors(Q), v => `most${v} = largest(most${v}); added${v} = all_of(added${v}); let unit${v} = select(vec4f(0.0), 127.0 / most${v}, most${v} > vec4f(0.0));`)}
      ${each(
        Math.ceil(words / LANES),
        k => `if (own${k}) {
        ${each(4, i => each(vectors(Q), v => `let y${i}_${v} = bitcast<vec4u>(fma(x${k}_${i}_${v} * range${k}_${i}.y, unit${v}, ${NEAREST}));`, ' '))}
        ${each(vectors(Q), v => `${wordAt(Q, 'd', `n${k}`, v)} = ((y0_${v} & vec4u(255)) | ((y1_${v} & vec4u(255)) << vec4u(8))) | (((y2_${v} & vec4u(255)) << vec4u(16)) | (y3_${v} << vec4u(24)));`)}
      }`,
      )}
      if (lane == 0) { ${each(vectors(Q), v => `scales[(2 * d) * ${vectors(Q)} + ${v}] = most${v} * ${float(1 / 127 / 2 ** (8 - codes.bits))}; scales[(2 * d + 1) * ${vectors(Q)} + ${v}] = added${v};`)} }
    }
    workgroupBarrier();
    ${each(vectors(Q), v => `let scale${v} = scales[2 * ${own} * ${vectors(Q)} + ${v}]; let added${v} = scales[(2 * ${own} + 1) * ${vectors(Q)} + ${v}];`)}`;
  return {
    name: `channels ${name}`,
    dim: D,
    words: D + 1,
    loaded: groups * words + 2 * groups,
    room: Q => groups * words * vectors(Q),
    text: Q => `var<workgroup> scales: array<vec4f, ${2 * groups * vectors(Q)}>;`,
    load: Q => `
  ${each(Math.ceil(words / LANES), k => each(4, i => each(vectors(Q), v => `let raw${k}_${i}_${v} = bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + 4 * min(lane + ${k * LANES}, ${words - 1}u) + ${i}]`)}) * ${LOG2E};`, ' ')))}
  ${each(vectors(Q), v => `let constants${v} = bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + ${D}]`)});`)}`,
    fetch: norms
      ? () =>
          `let keyNorms0 = four_halves(${norms.per === 'page' ? 'keyPage' : 'keyBlock'} + ${norms.offset} + 8 * lane);`
      : undefined,
    begin: make,
    sums: Q => `
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' '))}
    ${walk(lines, (n, words) =>
      products(
        Q,
        'I',
        words.map(({ top }) => `${top} ^ 0x80808080u`),
        (l, q) => of(`d${l}_`, q),
        v => wordAt(Q, own, n, v),
      ),
    )}
    ${each(Q, q => `let dots0_${q} = vec4f(vec4i(${each(4, j => of(`d${j}_`, q), ', ')}));`)}`,
    score: (q, _, plus) => {
      const score = `fma(dots0_${q}, vec4f(${of('scale', q)}), vec4f(${of('added', q)}))`;
      return norms ? `fma(keyNorms0, ${score}, ${plus ?? 'vec4f(0.0)'})` : withPlus(score, plus);
    },
    constant: v => `constants${v}`,
  };
}
