/**
 * Oaken's pages (codec/oaken/format.ts) as integers. First all values are taken as middle values: code times the
 * token's step, plus one of two shifts, the second from the token's first non-negative code on. Then lanes go
 * through the outlier lists of their tokens (oaken-outliers.ts) and add the differences: to the scores of the token, or
 * to the sums of dims, as integers in workgroup memory, where the order does not matter.
 *
 *   keys     code and shift become one 7-bit integer, so that one dot product serves both; outliers use f16 queries per dim
 *   values   codes and shift bits are two dot products, since probabilities include the steps; for outliers, two queries share
 *            an integer
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart, pageStart } from '../names.ts';
import { BLOCK, MAX_CODE } from '../oaken.ts';
import type { PageShape } from '../shape.ts';
import { each, float, maxOf4 } from '../snippets.ts';
import { stripsOf } from '../strips.ts';
import { int8Words } from '../transform.ts';
import { addTerm, type KeyStage, type Tokens, type ValueStage, vec4Of } from './attend.ts';
import { pairs } from './f16-pairs.ts';
import { loadQueries, queryDeclaration, queryWord } from './int8-queries.ts';
import {
  component,
  dots,
  FOUR,
  output,
  pageFactor,
  probabilities,
  probabilitySum,
  queryScaleOf,
  querySum,
  rescale,
  vectors,
} from './names.ts';
import {
  listsFromMemory,
  listsOfNeighbours,
  OUTLIER_DIM,
  OUTLIER_VECTORS,
  outlierFunctions,
  outlierLoop,
  tokenLoop,
} from './oaken-outliers.ts';
import { quantizedProbabilities, sumsOfWords } from './quantized-probabilities.ts';
import { type Lines, stripLoop } from './strip-loop.ts';
import { LANES } from './subgroup.ts';

/**
 * The page encoding, if pages have 128 tokens of two blocks and lines load as vectors: a lane has the counts of four
 * tokens in a word.
 */
function oakenOf(layout: PageLayout, order: 'rows' | 'columns', { headDim: D, pageTokens: P }: PageShape) {
  const { encoding, sharedBytes, blockBytes, codedDim } = layout;
  if (encoding.kind !== 'oaken' || encoding.codes.order !== order || codedDim !== D || layout.ropeFrequencies)
    return undefined;
  if (D !== 2 * BLOCK || P !== 4 * LANES) return undefined;
  if ([sharedBytes, blockBytes, encoding.codes.offset].some(n => n % 16 !== 0)) return undefined;
  if ([encoding.rangesOffset, encoding.listStartsOffset, encoding.listCountsOffset].some(n => n % 4 !== 0))
    return undefined;
  return encoding;
}

const STRIPS = stripsOf(4, 4 * LANES, 4 * LANES)!;
const linesOf = (id: string, at: string): Lines => ({
  strips: STRIPS,
  id,
  at,
  lineIndices: [0, 1, 2, 3].map(j => `lane + ${LANES * j}`),
});

/** Divisor of queries where f16 sums are accumulated, so that they do not overflow. */
const QUERY_DIVISOR = 1024;

/**
 * A middle value is code times step and, from the first non-negative code, a shift. As an integer up to 127: the
 * integers of a code and of the shift, the scale of both, and half of the rounding error of the shift.
 */
const keyLine = (apart: number) => /* wgsl */ `
fn key_line(step: f32) -> vec4f {
  let ratio = min(${float(apart)} / max(step, 1e-30), 1e6);
  let max_factor = floor(127.0 / (15.0 + ratio));
  // Of the largest three factors, the one whose shift is nearest to an integer.
  let candidates = max(vec3f(max_factor) - vec3f(0.0, 1.0, 2.0), vec3f(min(max_factor, 1.0)));
  let rounding_error = abs(fract(candidates * ratio + 0.5) - 0.5) / max(candidates, vec3f(1.0));
  let by = select(select(candidates.z, candidates.y, rounding_error.y < rounding_error.z), candidates.x, rounding_error.x <= min(rounding_error.y, rounding_error.z));
  let unit = select(${float(apart / 127)}, step / max(by, 1.0), by > 0);
  let more = min(round(${float(apart)} / max(unit, 1e-30)), 127.0 - 15.0 * by);
  return vec4f(by, more, unit, 0.5 * fma(-more, unit, ${float(apart)}));
}`;

export function oakenKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const page = oakenOf(layout, 'rows', shape);
  if (!page) return undefined;
  const { headDim: D, f16 = false } = shape;
  const [, innerLow, innerHigh] = page.thresholds;
  const apart = innerHigh - innerLow;
  const at = `${blockStart('key')} + ${page.codes.offset}`;
  const lines = linesOf('k', at);
  const { type, enable, of: pairOf } = pairs(f16);
  const lists = listsOfNeighbours('key');
  const code = `pool[(${at}) / 4 + (entry & 32) * 16 + select(0u, 1024u, second) + j * 128 + 4 * lane + ((entry >> 2) & 3)] >> (((entry << 3) & 24) | ((entry >> 2) & 4))`;
  const queryDim = (Q: number, i: string, v: number) => `query_dims[${i} * ${vectors(Q)} + ${v}]`;
  return {
    name: `oaken ${name}`,
    dim: D,
    queryWords: int8Words(D),
    int8: true,
    enable,
    scratchVectors: () => OUTLIER_VECTORS,
    text: Q => `${outlierFunctions('key', page, 0)}
${queryDeclaration(Q, D)}
/** Per dim, the values of four queries as f16. */
var<workgroup> query_dims: array<vec2u, ${D * vectors(Q)}>;
${keyLine(apart)}`,
    load: Q => `${loadQueries(Q, D)}
  workgroupBarrier();
  for (var i = lane; i < ${D}; i += ${LANES}) {
    ${each(vectors(Q), v => `{ let four = vec4f(bitcast<vec4i>(${queryWord(Q, 'i / 4', v)} << vec4u(24 - i % 4 * 8)) >> vec4u(24)) * ${float(1 / QUERY_DIVISOR)}; ${queryDim(Q, 'i', v)} = vec2u(pack2x16float(four.xy), pack2x16float(four.zw)); }`)}
  }`,
    begin: () => `
    workgroupBarrier();
    let lists = key_lists(${pageStart('key')}, head); key_prefetch(lists); let key_sizes = key_outliers(lists, ${blockStart('key')});`,
    sums: Q => `
    ${each(4, j => `let ends${j} = key_ends(${pageStart('key')}, 4 * lane + ${j}); let middle${j} = key_middle(ends${j}.y); let first${j} = u32(middle${j}.z); let line${j} = key_line(middle${j}.x); ${each(vectors(Q), v => `var d${j}_${v} = vec4i(0);`, ' ')}`)}
    let all_firsts = first0 | (first1 << 8) | (first2 << 16) | (first3 << 24);
    ${each(4, j => `let reach${j} = (16 - first${j}) * 0x01010101u; let by${j} = u32(line${j}.x); let shifted${j} = u32(line${j}.y);`, ' ')}
    ${stripLoop(
      lines,
      (n, words) =>
        `${each(vectors(Q), v => `let q${v} = ${queryWord(Q, n, v)};`, ' ')} ${words.map(({ codes }, j) => `{ let c = ${codes}; let b = c * by${j} + (((c + reach${j}) >> 4) & 0x01010101) * shifted${j}; ${each(Q, q => `${component(`d${j}_`, q)} += dot4I8Packed(b, ${component('q', q)});`, ' ')} }`).join(' ')}`,
    )}
    ${each(vectors(Q), v => each(4, j => `var all${j}_${v} = fma(vec4f(d${j}_${v}), vec4f(line${j}.z), ${querySum(v)} * (middle${j}.y + line${j}.w + ${float(innerLow)}));`, ' '))}
    workgroupBarrier();
    ${tokenLoop(
      lists,
      `${lists.lists}
      ${each(2 * vectors(Q), v => `var more${v} = ${type}();`, ' ')}
      let ends = key_ends(${pageStart('key')}, 4 * lane + j);
      let first = (all_firsts >> (8 * j)) & 255;
      ${outlierLoop(
        'key',
        { f16, at: 0, apart, code },
        each(
          vectors(Q),
          v =>
            `{ let by = ${queryDim(Q, OUTLIER_DIM, v)}; more${2 * v} = fma(${pairOf('by.x')}, difference, more${2 * v}); more${2 * v + 1} = fma(${pairOf('by.y')}, difference, more${2 * v + 1}); }`,
          ' ',
        ),
      )}
      ${each(vectors(Q), v => `{ let more = vec4f(vec2f(more${2 * v}), vec2f(more${2 * v + 1})) * ${QUERY_DIVISOR}.0; ${each(4, j => `all${j}_${v} += select(vec4f(0.0), more, j == ${j});`, ' ')} }`)}`,
    )}
    ${each(Q, q => `let ${dots(0, q)} = vec4f(${each(4, j => component(`all${j}_`, q), ', ')});`)}`,
    score: (q, _, plus) => addTerm(`${dots(0, q)} * vec4f(${queryScaleOf(q)})`, plus),
  };
}

/**
 * Sums of outlier differences under probabilities: `outlier_sums` has a 16-bit integer per dim and query, two queries per
 * word. Words are added as one integer; `sumOf` undoes the carry between the halves.
 */
function sharedSums(Q: number, D: number) {
  const words = Math.ceil(Q / 2);
  /** The nearest integer, in the lowest bits of 1.5 x 2^23 plus it. */
  const nearest = (q: number) => `bitcast<i32>(fma(${component('weights', q)}, by, 12582912.0))`;
  const both = (n: number) =>
    `${nearest(2 * n)} - 0x4b400000${2 * n + 1 < Q ? ` + (${nearest(2 * n + 1)} << 16)` : ''}`;
  const lower = (word: string) => `((${word} << 16) >> 16)`;
  return {
    size: words * D,
    // The old value is used: otherwise NVIDIA's compiler merges the additions of lanes to one address, which is slower.
    add: `let by = f32(difference.x); let i = ${OUTLIER_DIM};
          ${each(words, n => `used |= atomicAdd(&outlier_sums[${n * D} + i], ${both(n)});`, ' ')}`,
    /** `pairJ_N`: word N of dim lane + 32 J. */
    load: (j: number) =>
      each(words, n => `let pair${j}_${n} = atomicLoad(&outlier_sums[${n * D} + lane + ${LANES * j}]);`, ' '),
    sumOf: (j: number, q: number) => {
      const word = `pair${j}_${q >> 1}`;
      return q % 2 === 0 ? `f32(${lower(word)})` : `f32((${word} - ${lower(word)}) >> 16)`;
    },
  };
}

/** Bytes of 128 where codes reach the first non-negative code. */
const reached = (codes: string, first: string) => `((${codes} | 0x80808080u) - ${first}) & 0x80808080u`;

/** The first non-negative codes of a lane's four neighbours, if it owns other tokens. */
const firstsOf = ({ strided }: Tokens) =>
  strided
    ? `{ ${each(4, j => `let first${j} = value_middle(value_ends(${pageStart('value')}, 4 * lane + ${j}).y).z;`)} firsts[lane] = pack4xU8(vec4u(${each(4, j => `u32(first${j})`, ', ')})); }`
    : `firsts[lane] = pack4xU8(vec4u(${each(4, j => `u32(middle_value${j}.z)`, ', ')}));`;

export function oakenValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const page = oakenOf(layout, 'columns', shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P, f16 = false } = shape;
  const [outerLow, innerLow, innerHigh, outerHigh] = page.thresholds;
  const at = `${blockStart('value')} + ${page.codes.offset}`;
  const apart = innerHigh - innerLow;
  const maxOuter = Math.max(-outerLow, outerHigh);
  const maxInner = Math.max(-innerLow, innerHigh);
  // Probabilities times steps for codes, and as they are for shift bits.
  const quantized = quantizedProbabilities(P, 2);
  const middle = MAX_CODE / 2;
  const lines = linesOf('c', at);
  const code = `pool[(${at}) / 4 + (t >> 5) * ${4 * D} + ${OUTLIER_DIM} * 4 + ((t >> 2) & 3)] >> shift`;
  return {
    name: `oaken ${name}`,
    dim: D,
    enable: pairs(f16).enable,
    // Quantized probabilities stay in SCRATCH while lists are read.
    scratchVectors: Q => quantized.scratchVectors(Q) + OUTLIER_VECTORS,
    strided: true,
    text: Q => `${outlierFunctions('value', page, quantized.scratchVectors(Q))}
${quantized.declare(Q)}
var<workgroup> firsts: array<u32, ${P / 4}>;
var<workgroup> lists_at: array<u32, ${P}>;
var<workgroup> outlier_sums: array<atomic<i32>, ${sharedSums(Q, D).size}>;
fn max_abs2(word: u32) -> f32 { let x = abs(unpack2x16float(word)); return max(x.x, x.y); }`,
    declare: Q => each(vectors(Q), v => `var correction${v} = vec4f(0.0);`),
    accumulate: (Q, tokens) => {
      const lists = tokens.strided ? listsFromMemory('value') : listsOfNeighbours('value');
      const shared = sharedSums(Q, D);
      return `{
    workgroupBarrier();
    let lists = value_lists(${pageStart('value')}, head);
    value_prefetch(lists);
    let value_sizes = value_outliers(lists, ${blockStart('value')});
    for (var n = lane; n < ${shared.size}; n += ${LANES}) { atomicStore(&outlier_sums[n], 0); }
    ${lists.put}
    ${each(4, j => `let ends${j} = value_ends(${pageStart('value')}, ${tokens.at(0, j)}); let middle_value${j} = value_middle(ends${j}.y);`)}
    ${firstsOf(tokens)}
    let steps = vec4f(${each(4, j => `middle_value${j}.x`, ', ')});
    let lows = vec4f(${each(4, j => `fma(${float(middle)}, middle_value${j}.x, middle_value${j}.y)`, ', ')}) + ${float((innerLow + innerHigh) / 2)};
    // Upper bound of the difference between an outlier and its middle value.
    let reach = vec4f(${each(4, j => `max(max_abs2(ends${j}.x) + ${float(maxOuter)}, max_abs2(ends${j}.z)) + max_abs2(ends${j}.y)`, ', ')}) + ${float(maxInner)};
    let maxima = reduce_max(vec4f(${maxOf4('steps')}, ${maxOf4('reach')}, 0.0, 0.0));
    let max_step = max(maxima.x, 1e-30);
    let shares = steps * (1.0 / max_step);
    // Outlier sums have 15 bits and a sign, and every token may be rounded up.
    ${each(vectors(Q), v => `let unit${v} = ${float(2 ** 15 - 1 - P)} / (maxima.y * max(reduce_add(${probabilitySum(v)}), vec4f(1e-30)));`, ' ')}
    ${each(vectors(Q), v => `var page_correction${v} = vec4f(0.0);`, ' ')}
    ${quantized.store(
      Q,
      tokens,
      (q, c, s) => (s === 0 ? `(${probabilities(c, q)} * shares)` : probabilities(c, q)),
      (v, _, s) =>
        `page_correction${v} -= ${sumsOfWords} * ${s === 0 ? `(max_step * ${float(middle / 255)})` : float(apart / 2 / 255)};`,
    )}
    ${each(vectors(Q), v => `page_correction${v} += vec4f${vec4Of(Q, v, q => `dot(${probabilities(0, q)}, lows)`)};`)}
    ${each(vectors(Q), v => `correction${v} = fma(correction${v}, ${rescale(v)}, page_correction${v} * ${pageFactor(v)});`, ' ')}
    ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0); var b${j}_${v} = vec4u(0);`, ' '))}
    ${stripLoop(
      lines,
      (n, words) =>
        `let first = firsts[${n}]; ${each(vectors(Q), v => `let x${v} = ${quantized.at(Q, n, v)}; let y${v} = ${quantized.at(Q, `${P / 4} + ${n}`, v)};`, ' ')} ${words.map(({ codes }, j) => `{ let c = ${codes}; let b = ${reached('c', 'first')}; ${each(Q, q => `${component(`d${j}_`, q)} += dot4U8Packed(c, ${component('x', q)}); ${component(`b${j}_`, q)} += dot4U8Packed(b, ${component('y', q)});`, ' ')} }`).join(' ')}`,
    )}
    workgroupBarrier();
    ${each(Q, q => `let weight${q} = ${probabilities(0, q)} * ${component('unit', q)};`)}
    var used = 0;
    ${tokenLoop(
      lists,
      `let t = ${tokens.strided ? `lane + ${LANES} * j` : '4 * lane + j'};
      let ends = value_ends(${pageStart('value')}, t);
      let first = (firsts[t / 4] >> (t % 4 * 8)) & 255;
      ${each(vectors(Q), v => `let weights${v} = ${['0', '1', '2'].reduceRight((rest, j) => `select(${rest}, vec4f${vec4Of(Q, v, q => `weight${q}[${j}]`)}, j == ${j})`, `vec4f${vec4Of(Q, v, q => `weight${q}[3]`)}`)};`)}
      ${lists.lists}
      let shift = (t & 3) * 8 + (t & 16) / 4;
      ${outlierLoop('value', { f16, at: quantized.scratchVectors(Q), apart, code }, shared.add)}`,
    )}
    // Never true, which compilers do not know.
    if ((used & i32(${FOUR} >> 8)) != 0) { ${output(0, 0, 0)} += vec4f(1.0); }
    workgroupBarrier();
    ${each(
      4,
      j => `${shared.load(j)}
    ${each(vectors(Q), v => `{ let outlying = vec4f${vec4Of(Q, v, q => shared.sumOf(j, q))} / unit${v}; ${output(0, j, v)} = fma(fma(vec4f(d${j}_${v}), vec4f(max_step * ${float(1 / 255)}), fma(vec4f(b${j}_${v}), vec4f(${float(apart / 255 / 128)}), outlying)), ${pageFactor(v)}, ${output(0, j, v)} * ${rescale(v)}); }`)}`,
    )} }`;
    },
    finish: Q => `
  ${each(vectors(Q), v => `{ let all = reduce_add(correction${v}); ${each(4, j => `${output(0, j, v)} += all;`, ' ')} }`)}`,
  };
}
