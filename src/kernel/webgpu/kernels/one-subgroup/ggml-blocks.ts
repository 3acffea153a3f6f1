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
import { int8Words } from '../transform.ts';
import { addTerm, type KeyStage, LOG2E, roundsOf, type ValueStage, vec4Of } from './attend.ts';
import { pairs } from './f16-pairs.ts';
import { FOUR, SCRATCH, vectors } from './names.ts';
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
    Array.from({ length: roundsOf(P) }, (_, c) => {
      const V = vectors(Q);
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
        const products = (run: number) => `@unroll(k, ${2 * pairs}) {{
        @unroll(v, ${V}) let x$v = shifted_queries[own_queries][$((${2 * pairs * run} + k) * ${V} + v)];
        ${all(t => `{ let c = ${codes(`${prefetched.of(t)}$(k / 2)[$(k % 2)]`, run)}; @unroll(q, ${Q}) sum${t}_$[q] += dot4I8Packed(c, x$[q]); }`)}
      }}`;
        return `${all(t => `@unroll(v, ${V}) var sum${t}_$v = bias$v;`)}
      ${products(0)}
      ${nibbles ? products(1) : ''}
      ${all(
        t => `
      let both${t} = unpack2x16float(select(${prefetched.of(t)}0.x, ${prefetched.of(t)}0.y, scale_second));
      let block_scale${t} = select(both${t}.x, both${t}.y, scale_high);
      ${prefetched.next(t)}`,
      )}`;
      };
      return `
    @unroll(q, ${Q}) var dots${c}_$q = vec4f(0.0);
    ${prefetched.first}
    for (var batch = 0u; batch < ${batches}; batch++) {
      // The same for every batch, but hidden from compilers: they would hoist all queries into registers.
      let own_queries = lane % ${blocks} + (batch >> ${FOUR});
      ${scatter.reduce(V, make, e => `vec4f(sum${e}_$v) * block_scale${e}`)}
      let is_batch = vec4u(batch) == vec4u(0, 1, 2, 3);
      @unroll(q, ${Q}) dots${c}_$q = select(dots${c}_$q, vec4f(${scatter.result}$[q]), is_batch);
    }`;
    }).join('\n');
  // Padded by one vector, so that blocks lie in different banks.
  const stride = (Q: number) => 2 * pairs * runs * vectors(Q) + 1;
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
    @unroll(v, ${vectors(Q)}) shifted_queries[b][k * ${vectors(Q)} + $v] =
      vec4u${vec4Of(Q, `shifted_word(query_origin$q + first, k % ${2 * pairs}, b * ${bytes} % 8 + 2)`)};
  }
  @unroll(v, ${vectors(Q)}) var bias$v = vec4i(0);
  ${
    nibbles
      ? `for (var n = lane % ${blocks} * ${BLOCK_DIMS / 4}; n < (lane % ${blocks} + 1) * ${BLOCK_DIMS / 4}; n++) {
    @unroll(v, ${vectors(Q)}) bias$v -= vec4i${vec4Of(Q, 'dot4I8Packed(queries[query_origin$q + n], 0x08080808u)')};
  }`
      : ''
  }
  @unroll(v, ${vectors(Q)}) let query_scale$v = ${LOG2E} * bitcast<vec4f>(vec4u${vec4Of(Q, `queries[query_origin$q + ${D / 4}]`)});`,
    sums,
    score: plus => addTerm('dots$c_$q * vec4f(query_scale$[q])', plus),
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
  /** Of round `$i` of eight tokens, and of round r of the dims. */
  const loads = (r: string, first: string, word = '') => {
    const at = (t: string) =>
      `${blockStart('value')} / 4 + (${first} + $(${TOKENS_PER_ROUND} * i) + ${t}) * ${row} + $(${r} * ${bytes})`;
    return `@unroll(i, ${roundsTogether}) {
          ${word}scale_word$i = pool[${at('own_token')} + scale_at];
          ${fours.map(({ first: t }, f) => `@unroll(k, 4) ${word}word$i_${f}_$k = pool[${at(`${t} + $k`)} + unit_at];`).join('\n')}
        }`;
  };
  /** One sum per pair: of run `run`, bytes h and h + 2 of a word. */
  const eachPair = (text: (run: number, h: number) => string) =>
    runs.map((_, run) => `${text(run, 0)} ${text(run, 1)}`).join('\n');
  const pairAt = `${SCRATCH}[pair_at / 4][pair_at % 4`;
  const scaleProbabilities = (Q: number) => `@unroll(v, ${vectors(Q)}) {{
          let pair_at = (first + $(${TOKENS_PER_ROUND} * i) + own_token) * ${2 * vectors(Q)} + $(2 * v);
          let by = vec4f(unpack2x16float(${pairAt}]), unpack2x16float(${pairAt} + 1])) * (scale$i * factor);
          scaled_probabilities[$i][(4 * own_token + own_block) * ${vectors(Q)} + $v] = vec4u(@list(k in [x, y, z, w], pack2x16float(by.$k$k)));
        }}`;
  const multiply = (Q: number, { index, first }: (typeof fours)[number], f: number) => `{
          let ends = (scale_words[$i][4 * pair + ${index}] & vec4u(0xffff0000u)) | (scale_words[$i][4 * pair + 2 + ${index}] & vec4u(0xffffu));
          @unroll(k, 4) {{
            let x = select(word$i_${f}_$k, ends[$k], unit == 0);
            @unroll(v, ${vectors(Q)}) let by$v = scaled_probabilities[$i][(4 * (${first} + $k) + unit_block) * ${vectors(Q)} + $v];
            ${eachPair(
              (run, h) => `{
              let c = ${pairOf(`((${h === 0 ? 'x' : '(x >> 8u)'} & ${runs[run].mask}) ^ f16_magic)`)} - ${all(runs[run].middle)};
              @unroll(q, ${Q}) d${run}_${h}_$q = fma(c, ${pairOf('by$[q]')}, d${run}_${h}_$q);
            }`,
            )}
          }}
        }`;
  const peak = roundsTogether === 1 ? 'abs(scale0)' : 'max(abs(scale0), abs(scale1))';
  const addSums = (Q: number, r: number, sum: string, j: number) =>
    `@unroll(v, ${vectors(Q)}) sum${r}_$n_${j}_$v = fma(vec4f${vec4Of(Q, `f32(d$n_${sum})`)}, unit$v, sum${r}_$n_${j}_$v);`;
  /** Round r of the dims. */
  const round = (Q: number, r: number) => `{
      @unroll(n, ${runs.length}) @unroll(j, 4) @unroll(v, ${vectors(Q)}) sum${r}_$n_$j_$v *= rescale$v;
      ${r > 0 ? loads(`${r}`, '0') : ''}
      for (var first = 0u; first < ${P}; first += ${TOKENS_PER_ROUND * roundsTogether}) {
        @unroll(i, ${roundsTogether}) {
          let both$i = unpack2x16float(scale_word$i);
          let scale$i = select(both$i.x, both$i.y, odd_block);
        }
        // A power of two: the exponent bits.
        let peak = bitcast<u32>(reduce_max_nonnegative(${peak})) & 0x7f800000u;
        let factor = bitcast<f32>(0x7f000000u - peak);
        workgroupBarrier();
        @unroll(i, ${roundsTogether}) {
          scale_words[$i][slot][lane % 4] = scale_word$i;
          ${scaleProbabilities(Q)}
        }
        workgroupBarrier();
        ${eachPair((run, h) => `@unroll(q, ${Q}) var d${run}_${h}_$q = ${type}();`)}
        @unroll(i, ${roundsTogether}) { ${fours.map((four, f) => multiply(Q, four, f)).join('\n')} }
        // The last tokens are loaded twice: a branch would keep compilers from issuing the load early.
        let next = min(first + ${TOKENS_PER_ROUND * roundsTogether}, ${P - TOKENS_PER_ROUND * roundsTogether}u);
        ${loads(`${r}`, 'next')}
        @unroll(v, ${vectors(Q)}) let unit$v = page_factor$v * vec4f(bitcast<f32>(peak));
        @unroll(n, ${runs.length}) {
          ${['0_$q.x', '1_$q.x', '0_$q.y', '1_$q.y'].map((sum, j) => addSums(Q, r, sum, j)).join('\n')}
        }
      }
    }`;
  // The lanes of the first of two tokens end with the lower run of dims, the others with the upper.
  const [lower, upper] = ['sum$r_0_$j_$v', 'sum$r_1_$j_$v * 0.0625'];
  const combinedOutput = nibbles
    ? `select(${upper}, ${lower}, own_four == 0) + shuffle_xor(select(${lower}, ${upper}, own_four == 0), 16)`
    : lower;
  return {
    name: `blocks ${name}`,
    dim: D,
    enable,
    // Probabilities, two queries per word, token by token.
    scratchVectors: Q => (P * vectors(Q)) / 2,
    dimOf: `($(128 * r)${nibbles ? ' + 16 * own_four' : ''} + 64 * pair + select(
      select(4 * unit + $j - 2, $((j + ${4 * words - 2}) % ${4 * words})u, unit == 0),
      $(${BLOCK_DIMS} + j) + 4 * (unit - ${words}), unit >= ${words}))`,
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
  @unroll(r, ${rounds}) @unroll(n, ${runs.length}) @unroll(j, 4) @unroll(v, ${vectors(Q)}) var sum$r_$n_$j_$v = vec4f(0.0);`,
    prefetch: () => loads('0', '0', 'var '),
    accumulate: (Q, tokens) => `
    workgroupBarrier();
    @unroll(c, ${roundsOf(P)}) @unroll(j, 4) {{
      let t = ${tokens.at};
      ${P % 128 === 0 ? '' : `if (t < ${P}) `}{
        @unroll(u, ${2 * vectors(Q)}) {{
          let at = t * ${2 * vectors(Q)} + $u;
          ${SCRATCH}[at / 4][at % 4] = pack2x16float(vec2f(@list(k, 2, prob$c_$(min(2 * u + k, ${Q - 1}))[$j])));
        }}
      }
    }}
    workgroupBarrier();
    ${Array.from({ length: rounds }, (_, r) => round(Q, r)).join('\n')}`,
    finish: Q => `@unroll(r, ${rounds}) @unroll(j, 4) @unroll(v, ${vectors(Q)}) out$r_$j_$v = ${combinedOutput};`,
  };
}
