/**
 * ggml blocks (q8_0, q4_0): rows of blocks of 32 dims, each an f16 scale and its codes, at multiples of two bytes.
 * Every byte is read once, by neighbouring lanes for neighbouring bytes.
 *
 *   keys     int8: a lane loads the aligned vectors that contain a block, against an int8 query shifted by as many bytes and
 *            zero where the vectors hold something else; then the lanes of a token reduce-scatter their sums
 *   values   f16: a lane has one word of codes per token, which become pairs of f16. Per eight tokens it also has a scale, and
 *            computes the probabilities of that token and block times the scale
 */

import type { PageLayout } from '../../../page-layout.ts';
import { blockStart } from '../names.ts';
import type { PageShape } from '../shape.ts';
import { each } from '../snippets.ts';
import { int8Words } from '../transform.ts';
import { addTerm, type KeyStage, LOG2E, roundsOf, type ValueStage, vec4Of } from './attend.ts';
import { pairs } from './f16-pairs.ts';
import {
  component,
  dots,
  FOUR,
  output,
  pageFactor,
  probabilities,
  queryOrigin,
  queryScale,
  queryScaleOf,
  rescale,
  SCRATCH,
  vectors,
} from './names.ts';
import { reduceScatter } from './reduce-scatter.ts';
import { LANES } from './subgroup.ts';

const BLOCK_DIMS = 32;
/** Blocks that a lane prefetches, and blocks multiplied together with the words of a query. */
const KEYS = { prefetch: 4, together: 2 };
/** Tokens per round of scales: one scale per lane. */
const TOKENS_PER_ROUND = 8;
/** Rounds of eight tokens loaded and weighted together. */
const ROUNDS_TOGETHER = 2;

/** Words per block; a word holds four bytes of consecutive dims, or nibbles of two runs of dims 16 apart. */
function blocksOf(
  { encoding, codedDim, sharedBytes, blockBytes }: PageLayout,
  { headDim: D, pageTokens: P }: PageShape,
) {
  if ((encoding.kind !== 'q8_0' && encoding.kind !== 'q4_0') || codedDim !== D || D % 128 !== 0) return undefined;
  if (P % TOKENS_PER_ROUND !== 0 || [sharedBytes, blockBytes].some(n => n % 16 !== 0)) return undefined;
  const nibbles = encoding.kind === 'q4_0';
  const words = nibbles ? 4 : 8;
  return {
    nibbles,
    words,
    bytes: 2 + 4 * words,
    blocks: D / BLOCK_DIMS,
    roundsTogether: P % (TOKENS_PER_ROUND * ROUNDS_TOGETHER) === 0 ? ROUNDS_TOGETHER : 1,
  };
}

export function ggmlBlockKeys(name: string, layout: PageLayout, shape: PageShape): KeyStage | undefined {
  const kind = blocksOf(layout, shape);
  if (!kind || layout.ropeFrequencies || !Number.isInteger(Math.log2(kind.blocks))) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { nibbles, words, bytes, blocks } = kind;
  const runs = nibbles ? 2 : 1;
  // Blocks begin at any even byte of a pair of words. This many pairs contain a whole block.
  const pairs = Math.ceil((6 + bytes) / 8);
  const scatter = reduceScatter(blocks, false);
  const codes = (word: string, run: number) =>
    !nibbles ? word : run === 0 ? `${word} & 0x0f0f0f0fu` : `(${word} >> 4u) & 0x0f0f0f0fu`;
  const sums = (Q: number) =>
    each(roundsOf(P), c => {
      const batches = Math.min(4, Math.ceil((P - 128 * c) / LANES));
      // Block n of a batch of 32 tokens belongs to lane n % 32.
      const prefetched = scatter.prefetch(
        KEYS.prefetch,
        `keys${c}`,
        (batch, e) => {
          const index = `(${128 * c} + ${LANES} * ${batch}) * ${blocks} + ${LANES * e} + lane`;
          const block = P % LANES === 0 ? `(${index})` : `min(${index}, ${P * blocks - 1}u)`;
          return Array.from(
            { length: pairs },
            (_, k) => `pool2[${blockStart('key')} / 8 + ${block} * ${bytes} / 8 + ${k}]`,
          );
        },
        batches,
      );
      const make = (e: number) => {
        const together = scatter.groupFrom(KEYS.together, e);
        if (together.length === 0) return '';
        const all = (text: (e: number) => string) => together.map(text).join(' ');
        const products = (run: number, k: number) =>
          `{ ${each(vectors(Q), v => `let x${v} = shifted_queries[own_queries][${(2 * pairs * run + k) * vectors(Q) + v}];`, ' ')} ${all(t => `{ let c = ${codes(`${prefetched.of(t)}${k >> 1}[${k & 1}]`, run)}; ${each(Q, q => `${component(`sum${t}_`, q)} += dot4I8Packed(c, ${component('x', q)});`, ' ')} }`)} }`;
        return `${all(t => each(vectors(Q), v => `var sum${t}_${v} = bias${v};`, ' '))}
      ${each(runs, run => each(2 * pairs, k => products(run, k)))}
      ${all(t => `let both${t} = unpack2x16float(select(${prefetched.of(t)}0.x, ${prefetched.of(t)}0.y, scale_second)); let block_scale${t} = select(both${t}.x, both${t}.y, scale_high); ${prefetched.next(t)}`)}`;
      };
      return `
    ${each(Q, q => `var ${dots(c, q)} = vec4f(0.0);`, ' ')}
    ${prefetched.first}
    for (var batch = 0u; batch < ${batches}; batch++) {
      // The same for every batch, but hidden from compilers: they would hoist all queries into registers.
      let own_queries = lane % ${blocks} + (batch >> ${FOUR});
      ${scatter.reduce(vectors(Q), make, (e, v) => `vec4f(sum${e}_${v}) * block_scale${e}`)}
      let is_batch = vec4u(batch) == vec4u(0, 1, 2, 3);
      ${each(Q, q => `${dots(c, q)} = select(${dots(c, q)}, vec4f(${component(scatter.result, q)}), is_batch);`)}
    }`;
    });
  // Padded by one vector, so that blocks lie in different banks.
  const stride = (Q: number) => 2 * pairs * runs * vectors(Q) + 1;
  const query = (q: number, word: string) => `queries[${queryOrigin(q)} + ${word}]`;
  return {
    name: `blocks ${name}`,
    dim: D,
    queryWords: int8Words(D),
    int8: true,
    strided: true,
    firstToken: `(lane % ${blocks} * ${LANES / blocks} + lane / ${blocks})`,
    text: Q => `${scatter.text}
var<workgroup> shifted_queries: array<array<vec4u, ${stride(Q)}>, ${blocks}>;
/** Word n of a block's int8 query, which begins at \`from_word\`, shifted by \`bytes\` (an even number). */
fn shifted_word(from_word: u32, n: u32, bytes: u32) -> u32 {
  let whole = bytes / 4;
  let high = n - whole;
  let upper = select(0u, queries[from_word + min(high, ${words - 1}u)], high < ${words});
  let lower = select(0u, queries[from_word + min(high - 1, ${words - 1}u)], high - 1 < ${words});
  return select(upper, (upper << 16) | (lower >> 16), (bytes & 2) == 2);
}`,
    load: Q => `
  let start_byte = lane * ${bytes} % 8;
  let scale_high = (start_byte & 2) == 2;
  let scale_second = (start_byte & 4) == 4;
  for (var n = lane; n < ${blocks * 2 * pairs * runs}; n += ${LANES}) {
    let b = n / ${2 * pairs * runs};
    let k = n % ${2 * pairs * runs};
    let first = b * ${BLOCK_DIMS / 4} + k / ${2 * pairs} * 4;
    ${each(vectors(Q), v => `shifted_queries[b][k * ${vectors(Q)} + ${v}] = vec4u${vec4Of(Q, v, q => `shifted_word(${queryOrigin(q)} + first, k % ${2 * pairs}, b * ${bytes} % 8 + 2)`)};`)}
  }
  ${each(vectors(Q), v => `var bias${v} = vec4i(0);`)}
  ${
    nibbles
      ? `for (var n = lane % ${blocks} * ${BLOCK_DIMS / 4}; n < (lane % ${blocks} + 1) * ${BLOCK_DIMS / 4}; n++) {
    ${each(vectors(Q), v => `bias${v} -= vec4i${vec4Of(Q, v, q => `dot4I8Packed(${query(q, 'n')}, 0x08080808u)`)};`)}
  }`
      : ''
  }
  ${each(vectors(Q), v => `let ${queryScale(v)} = ${LOG2E} * bitcast<vec4f>(vec4u${vec4Of(Q, v, q => query(q, `${D / 4}`))});`)}`,
    sums,
    score: (q, c, plus) => addTerm(`${dots(c, q)} * vec4f(${queryScaleOf(q)})`, plus),
  };
}

/**
 * 128 dims are four blocks. Two blocks are whole words but for the ends of the first, which share words with the
 * scales. So a lane has a `unit`: one word of the two blocks, or, for unit 0, both ends. A token of q8_0 has one unit
 * per lane; two tokens of q4_0 share the lanes.
 *
 * Scales are relative to the largest of some tokens, so that f16 does not overflow; the sums of these tokens become
 * floats.
 */
export function ggmlBlockValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const kind = blocksOf(layout, shape);
  if (!kind) return undefined;
  const { headDim: D, pageTokens: P, f16 = false } = shape;
  const { nibbles, words, bytes, blocks, roundsTogether } = kind;
  const row = (blocks * bytes) / 4;
  const rounds = roundsOf(D);
  const { type, enable, of: pairOf, all } = pairs(f16);
  // Masks of the codes of a word, and the offset of their f16 values.
  const runs = nibbles
    ? [
        { mask: '0x000f000fu', middle: 1032 },
        { mask: '0x00f000f0u', middle: 1152 },
      ]
    : [{ mask: '0x00ff00ffu', middle: 1152 }];
  // Groups of four tokens of which a lane has words.
  const fours = nibbles
    ? [{ index: 'own_four', first: '4 * own_four' }]
    : [0, 1].map(f => ({ index: `${f}`, first: `${4 * f}` }));
  const load = (r: number, first: string, i: number) => {
    const at = (t: string) =>
      `${blockStart('value')} / 4 + (${first} + ${TOKENS_PER_ROUND * i} + ${t}) * ${row} + ${r * bytes}`;
    return [
      { name: `scale_word${i}`, text: `pool[${at('own_token')} + scale_at]` },
      ...fours.flatMap(({ first: t }, f) =>
        Array.from({ length: 4 }, (_, k) => ({
          name: `word${i}_${f}_${k}`,
          text: `pool[${at(`${t} + ${k}`)} + unit_at]`,
        })),
      ),
    ];
  };
  const loads = (r: number, first: string, word = '') =>
    each(roundsTogether, i =>
      load(r, first, i)
        .map(({ name: id, text }) => `${word}${id} = ${text};`)
        .join(' '),
    );
  /** One sum per pair: of run `run`, bytes h and h + 2 of a word. */
  const eachPair = (text: (run: number, h: number) => string) => each(runs.length, run => each(2, h => text(run, h)));
  const scaleProbabilities = (Q: number, i: number) =>
    each(
      vectors(Q),
      v =>
        `{ let pair_at = (first + ${TOKENS_PER_ROUND * i} + own_token) * ${2 * vectors(Q)} + ${2 * v};
        let by = vec4f(unpack2x16float(${SCRATCH}[pair_at / 4][pair_at % 4]), unpack2x16float(${SCRATCH}[pair_at / 4][pair_at % 4 + 1])) * (scale${i} * factor);
        scaled_probabilities[${i}][(4 * own_token + own_block) * ${vectors(Q)} + ${v}] = vec4u(${each(4, k => `pack2x16float(by.${'xyzw'[k].repeat(2)})`, ', ')}); }`,
    );
  const multiply = (Q: number, i: number, f: number) => `{
        let ends = (scale_words[${i}][4 * pair + ${fours[f].index}] & vec4u(0xffff0000u)) | (scale_words[${i}][4 * pair + 2 + ${fours[f].index}] & vec4u(0xffffu));
        ${each(
          4,
          k => `{ let x = select(word${i}_${f}_${k}, ends[${k}], unit == 0);
        ${each(vectors(Q), v => `let by${v} = scaled_probabilities[${i}][(4 * (${fours[f].first} + ${k}) + unit_block) * ${vectors(Q)} + ${v}];`, ' ')}
        ${eachPair((run, h) => `{ let c = ${pairOf(`((${h === 0 ? 'x' : '(x >> 8u)'} & ${runs[run].mask}) ^ f16_magic)`)} - ${all(runs[run].middle)}; ${each(Q, q => `d${run}_${h}_${q} = fma(c, ${pairOf(component('by', q))}, d${run}_${h}_${q});`, ' ')} }`)} }`,
        )}
      }`;
  const round = (Q: number, r: number) => `{
      ${each(runs.length, run => each(4, j => each(vectors(Q), v => `sum${r}_${run}_${j}_${v} *= ${rescale(v)};`, ' ')))}
      ${r > 0 ? loads(r, '0') : ''}
      for (var first = 0u; first < ${P}; first += ${TOKENS_PER_ROUND * roundsTogether}) {
        ${each(roundsTogether, i => `let both${i} = unpack2x16float(scale_word${i}); let scale${i} = select(both${i}.x, both${i}.y, odd_block);`)}
        // A power of two: the exponent bits.
        let peak = bitcast<u32>(reduce_max_nonnegative(${Array.from({ length: roundsTogether }, (_, i) => `abs(scale${i})`).reduce((x, y) => `max(${x}, ${y})`)})) & 0x7f800000u;
        let factor = bitcast<f32>(0x7f000000u - peak);
        workgroupBarrier();
        ${each(roundsTogether, i => `scale_words[${i}][slot][lane % 4] = scale_word${i}; ${scaleProbabilities(Q, i)}`)}
        workgroupBarrier();
        ${eachPair((run, h) => each(Q, q => `var d${run}_${h}_${q} = ${type}();`, ' '))}
        ${each(roundsTogether, i => each(fours.length, f => multiply(Q, i, f)))}
        // The last tokens are loaded twice: a branch would keep compilers from issuing the load early.
        let next = min(first + ${TOKENS_PER_ROUND * roundsTogether}, ${P - TOKENS_PER_ROUND * roundsTogether}u);
        ${loads(r, 'next')}
        ${each(vectors(Q), v => `let unit${v} = ${pageFactor(v)} * vec4f(bitcast<f32>(peak));`)}
        ${each(runs.length, run => each(4, j => each(vectors(Q), v => `sum${r}_${run}_${j}_${v} = fma(vec4f${vec4Of(Q, v, q => `f32(d${run}_${j % 2}_${q}.${j < 2 ? 'x' : 'y'})`)}, unit${v}, sum${r}_${run}_${j}_${v});`, ' ')))}
      }
    }`;
  // The lanes of the first of two tokens end with the lower run of dims, the others with the upper.
  const combinedOutput = (r: number, j: number, v: number) =>
    nibbles
      ? `select(sum${r}_1_${j}_${v} * 0.0625, sum${r}_0_${j}_${v}, own_four == 0) + shuffle_xor(select(sum${r}_0_${j}_${v}, sum${r}_1_${j}_${v} * 0.0625, own_four == 0), 16)`
      : `sum${r}_0_${j}_${v}`;
  return {
    name: `blocks ${name}`,
    dim: D,
    enable,
    // Probabilities, two queries per word, token by token.
    scratchVectors: Q => (P * vectors(Q)) / 2,
    dimOf: (r, j) =>
      `(${128 * r}${nibbles ? ' + 16 * own_four' : ''} + 64 * pair + select(select(4 * unit + ${j} - 2, ${j < 2 ? 4 * words - 2 + j : j - 2}u, unit == 0), ${BLOCK_DIMS + j} + 4 * (unit - ${words}), unit >= ${words}))`,
    text: Q => `
var<workgroup> scale_words: array<array<vec4u, ${TOKENS_PER_ROUND}>, ${roundsTogether}>;
var<workgroup> scaled_probabilities: array<array<vec4u, ${TOKENS_PER_ROUND * 4 * vectors(Q)}>, ${roundsTogether}>;`,
    declare: Q => `
  // Scales: lanes of a block and four tokens.
  let slot = lane / 4;
  let own_block = slot / 2;
  ${nibbles ? 'let own_four = lane / 16;' : ''}
  let odd_block = own_block % 2 == 1;
  let own_token = 4 * (slot % 2) + lane % 4;
  let scale_at = own_block * ${bytes} / 4;
  let unit = lane % ${2 * words};
  let pair = lane / ${2 * words} % 2;
  let unit_at = pair * ${bytes / 2} + unit + select(0u, 1u, unit >= ${words});
  let unit_block = 2 * pair + select(0u, 1u, unit >= ${words});
  // Hidden from compilers: they would split it into two constants.
  let f16_magic = ${nibbles ? '0x64006400u' : '0x64806480u'} ^ (${FOUR} >> 8u);
  ${each(rounds, r => each(runs.length, run => each(4, j => each(vectors(Q), v => `var sum${r}_${run}_${j}_${v} = vec4f(0.0);`, ' '))))}`,
    prefetch: () => loads(0, '0', 'var '),
    accumulate: (Q, tokens) => `
    workgroupBarrier();
    ${each(roundsOf(P), c => each(4, j => `{ let t = ${tokens.at(c, j)}; ${P % 128 === 0 ? '' : `if (t < ${P}) `}{ ${each(2 * vectors(Q), u => `{ let at = t * ${2 * vectors(Q)} + ${u}; ${SCRATCH}[at / 4][at % 4] = pack2x16float(vec2f(${[2 * u, 2 * u + 1].map(q => `${probabilities(c, Math.min(q, Q - 1))}[${j}]`).join(', ')})); }`, ' ')} } }`))}
    workgroupBarrier();
    ${each(rounds, r => round(Q, r))}`,
    finish: Q =>
      each(rounds, r => each(4, j => each(vectors(Q), v => `${output(r, j, v)} = ${combinedOutput(r, j, v)};`))),
  };
}
