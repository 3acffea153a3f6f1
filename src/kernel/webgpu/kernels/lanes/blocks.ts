/**
 * llama.cpp's blocks (q8_0, q4_0): rows of blocks of 32 dims, each a scale (f16) and its codes. Blocks begin at multiples of
 * two bytes. Every byte is read once, and lanes side by side read what lies side by side.
 *
 *   keys     integers: a lane has a block, as the vectors that it lies in, against an int8 query that was moved by as many
 *            bytes and is zero where the vectors hold something else; then the lanes of a token swap sums (swap.ts)
 *   values   halves: a lane has a word of codes a token, which become pairs of halves. Of every eight tokens it has a scale
 *            too, and makes the weights of that token and block, with the scale in them.
 */

import type { Fragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import type { PageShape } from '../shape.ts';
import { each } from '../text.ts';
import { type KeyPart, LOG2E, of, roundsOf, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { pairs } from './halves.ts';
import { swapping } from './swap.ts';
import { LANES } from './talk.ts';

const BLOCK = 32;
/** Blocks of keys that a lane reads before the first of them is used, and that meet the words of a query together. */
const KEYS = { ahead: 4, together: 2 };
/** Tokens of which a lane has a scale, and makes weights. */
const EIGHT = 8;
/** Eights that are read at once, and whose weights are made together. */
const EIGHTS = 2;

/** Words of codes a block; of a word, bytes for dims in order, or nibbles for two runs of dims 16 apart. */
function blocksOf({ page, codedDim, sharedBytes, blockBytes }: Fragment, { headDim: D, pageTokens: P }: PageShape) {
  if ((page.kind !== 'q8_0' && page.kind !== 'q4_0') || codedDim !== D || D % 128 !== 0) return undefined;
  if (P % EIGHT !== 0 || [sharedBytes, blockBytes].some(n => n % 16 !== 0)) return undefined;
  const nibbles = page.kind === 'q4_0';
  const words = nibbles ? 4 : 8;
  return { nibbles, words, bytes: 2 + 4 * words, blocks: D / BLOCK, eights: P % (EIGHT * EIGHTS) === 0 ? EIGHTS : 1 };
}

export function blockKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const kind = blocksOf(fragment, shape);
  if (!kind || fragment.turn || !Number.isInteger(Math.log2(kind.blocks))) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { nibbles, words, bytes, blocks } = kind;
  const runs = nibbles ? 2 : 1;
  // Of four blocks in a row, each begins two bytes later in its first pair of words. So many pairs have it whole.
  const pairs = Math.ceil((6 + bytes) / 8);
  const swap = swapping(blocks, false);
  const codes = (word: string, run: number) =>
    !nibbles ? word : run === 0 ? `${word} & 0x0f0f0f0fu` : `(${word} >> 4u) & 0x0f0f0f0fu`;
  const sums = (Q: number) =>
    each(roundsOf(P), c => {
      const batches = Math.min(4, Math.ceil((P - 128 * c) / LANES));
      // Block n of a batch of 32 tokens is for lane n % 32.
      const ahead = swap.ahead(
        KEYS.ahead,
        `keys${c}`,
        (batch, e) => {
          const own = `(${128 * c} + ${LANES} * ${batch}) * ${blocks} + ${LANES * e} + lane`;
          const block = P % LANES === 0 ? `(${own})` : `min(${own}, ${P * blocks - 1}u)`;
          return Array.from({ length: pairs }, (_, k) => `pool2[keyBlock / 8 + ${block} * ${bytes} / 8 + ${k}]`);
        },
        batches,
      );
      const make = (e: number) => {
        const together = swap.after(KEYS.together, e);
        if (together.length === 0) return '';
        const all = (text: (e: number) => string) => together.map(text).join(' ');
        const products = (run: number, k: number) =>
          `{ ${each(vectors(Q), v => `let x${v} = moved_queries[own_queries][${(2 * pairs * run + k) * vectors(Q) + v}];`, ' ')} ${all(t => `{ let c = ${codes(`${ahead.of(t)}${k >> 1}[${k & 1}]`, run)}; ${each(Q, q => `${of(`sum${t}_`, q)} += dot4I8Packed(c, ${of('x', q)});`, ' ')} }`)} }`;
        return `${all(t => each(vectors(Q), v => `var sum${t}_${v} = bias${v};`, ' '))}
      ${each(runs, run => each(2 * pairs, k => products(run, k)))}
      ${all(t => `let both${t} = unpack2x16float(select(${ahead.of(t)}0.x, ${ahead.of(t)}0.y, scale_second)); let block_scale${t} = select(both${t}.x, both${t}.y, scale_high); ${ahead.next(t)}`)}`;
      };
      return `
    ${each(Q, q => `var dots${c}_${q} = vec4f(0.0);`, ' ')}
    ${ahead.first}
    for (var batch = 0u; batch < ${batches}; batch++) {
      // The same for every batch, but no compiler shall know and have all of them in registers.
      let own_queries = lane % ${blocks} + (batch >> p.four);
      ${swap.each(vectors(Q), make, (e, v) => `vec4f(sum${e}_${v}) * block_scale${e}`)}
      let mine = vec4u(batch) == vec4u(0, 1, 2, 3);
      ${each(Q, q => `dots${c}_${q} = select(dots${c}_${q}, vec4f(${of(swap.result, q)}), mine);`)}
    }`;
    });
  // Queries of a block, and one vector that keeps those of others in other banks.
  const stride = (Q: number) => 2 * pairs * runs * vectors(Q) + 1;
  const query = (q: number, word: string) => `queries[origin${q} + ${word}]`;
  return {
    name: `blocks ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    strided: true,
    place: `(lane % ${blocks} * ${LANES / blocks} + lane / ${blocks})`,
    text: Q => `${swap.text}
var<workgroup> moved_queries: array<array<vec4u, ${stride(Q)}>, ${blocks}>;
/** Word n of a block's int8 query, from \`from\` on, moved by so many bytes (an even number). */
fn moved(from_word: u32, n: u32, bytes: u32) -> u32 {
  let whole = bytes / 4;
  let high = n - whole;
  let upper = select(0u, queries[from_word + min(high, ${words - 1}u)], high < ${words});
  let lower = select(0u, queries[from_word + min(high - 1, ${words - 1}u)], high - 1 < ${words});
  return select(upper, (upper << 16) | (lower >> 16), (bytes & 2) == 2);
}`,
    load: Q => `
  let begins = lane * ${bytes} % 8;
  let scale_high = (begins & 2) == 2;
  let scale_second = (begins & 4) == 4;
  for (var n = lane; n < ${blocks * 2 * pairs * runs}; n += ${LANES}) {
    let b = n / ${2 * pairs * runs};
    let k = n % ${2 * pairs * runs};
    let first = b * ${BLOCK / 4} + k / ${2 * pairs} * 4;
    ${each(vectors(Q), v => `moved_queries[b][k * ${vectors(Q)} + ${v}] = vec4u${vectorOf(Q, v, q => `moved(origin${q} + first, k % ${2 * pairs}, b * ${bytes} % 8 + 2)`)};`)}
  }
  ${each(vectors(Q), v => `var bias${v} = vec4i(0);`)}
  ${
    nibbles
      ? `for (var n = lane % ${blocks} * ${BLOCK / 4}; n < (lane % ${blocks} + 1) * ${BLOCK / 4}; n++) {
    ${each(vectors(Q), v => `bias${v} -= vec4i${vectorOf(Q, v, q => `dot4I8Packed(${query(q, 'n')}, 0x08080808u)`)};`)}
  }`
      : ''
  }
  ${each(vectors(Q), v => `let scale${v} = ${LOG2E} * bitcast<vec4f>(vec4u${vectorOf(Q, v, q => query(q, `${D / 4}`))}); let constants${v} = bitcast<vec4f>(vec4u${vectorOf(Q, v, q => query(q, `${D / 4 + 2}`))});`)}`,
    sums,
    score: (q, c, plus) => withPlus(`dots${c}_${q} * vec4f(${of('scale', q)})`, plus),
    constant: v => `constants${v}`,
  };
}

/**
 * Of 128 dims, four blocks: two blocks are whole words but for the first one's ends, which share words with the scales. So
 * a lane has a `unit`: a word of the two, or, the first, both ends. A token of q8_0 has one for every lane, two tokens of q4_0
 * have. Of every eight tokens a lane has one scale, and makes the weights of its token for that block.
 *
 * Scales are taken relative to the largest of some tokens, so that halves have room for them, and sums of these become floats.
 */
export function blockValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const kind = blocksOf(fragment, shape);
  if (!kind) return undefined;
  const { headDim: D, pageTokens: P, f16 = false } = shape;
  const { nibbles, words, bytes, blocks, eights } = kind;
  const row = (blocks * bytes) / 4;
  const rounds = roundsOf(D);
  const { type, enable, of: pairOf, all } = pairs(f16);
  // Where the codes of a word are, and what is added to them as halves.
  const runs = nibbles
    ? [
        { mask: '0x000f000fu', middle: 1032 },
        { mask: '0x00f000f0u', middle: 1152 },
      ]
    : [{ mask: '0x00ff00ffu', middle: 1152 }];
  // Fours of an eight that a lane has words of.
  const fours = nibbles
    ? [{ own: 'own_four', first: '4 * own_four' }]
    : [0, 1].map(f => ({ own: `${f}`, first: `${4 * f}` }));
  const load = (r: number, first: string, i: number) => {
    const at = (t: string) => `valueBlock / 4 + (${first} + ${EIGHT * i} + ${t}) * ${row} + ${r * bytes}`;
    return [
      { name: `mark${i}`, text: `pool[${at('own_token')} + scale_at]` },
      ...fours.flatMap(({ first: t }, f) =>
        Array.from({ length: 4 }, (_, k) => ({
          name: `word${i}_${f}_${k}`,
          text: `pool[${at(`${t} + ${k}`)} + unit_at]`,
        })),
      ),
    ];
  };
  const loads = (r: number, first: string, word = '') =>
    each(eights, i =>
      load(r, first, i)
        .map(({ name: id, text }) => `${word}${id} = ${text};`)
        .join(' '),
    );
  /** Sums of pairs: of run `run`, bytes h and h + 2 of a word. */
  const eachPair = (text: (run: number, h: number) => string) => each(runs.length, run => each(2, h => text(run, h)));
  const weigh = (Q: number, i: number) =>
    each(
      vectors(Q),
      v =>
        `{ let pair_at = (first + ${EIGHT * i} + own_token) * ${2 * vectors(Q)} + ${2 * v};
        let by = vec4f(unpack2x16float(room[pair_at / 4][pair_at % 4]), unpack2x16float(room[pair_at / 4][pair_at % 4 + 1])) * (own${i} * factor);
        weighed[${i}][(4 * own_token + own_block) * ${vectors(Q)} + ${v}] = vec4u(${each(4, k => `pack2x16float(by.${'xyzw'[k].repeat(2)})`, ', ')}); }`,
    );
  const multiply = (Q: number, i: number, f: number) => `{
        let ends = (marks[${i}][4 * pair + ${fours[f].own}] & vec4u(0xffff0000u)) | (marks[${i}][4 * pair + 2 + ${fours[f].own}] & vec4u(0xffffu));
        ${each(
          4,
          k => `{ let x = select(word${i}_${f}_${k}, ends[${k}], unit == 0);
        ${each(vectors(Q), v => `let by${v} = weighed[${i}][(4 * (${fours[f].first} + ${k}) + unit_block) * ${vectors(Q)} + ${v}];`, ' ')}
        ${eachPair((run, h) => `{ let c = ${pairOf(`((${h === 0 ? 'x' : '(x >> 8u)'} & ${runs[run].mask}) ^ magic)`)} - ${all(runs[run].middle)}; ${each(Q, q => `d${run}_${h}_${q} = fma(c, ${pairOf(of('by', q))}, d${run}_${h}_${q});`, ' ')} }`)} }`,
        )}
      }`;
  const round = (Q: number, r: number) => `{
      ${each(runs.length, run => each(4, j => each(vectors(Q), v => `sum${r}_${run}_${j}_${v} *= kept${v};`, ' ')))}
      ${r > 0 ? loads(r, '0') : ''}
      for (var first = 0u; first < ${P}; first += ${EIGHT * eights}) {
        ${each(eights, i => `let both${i} = unpack2x16float(mark${i}); let own${i} = select(both${i}.x, both${i}.y, odd_block);`)}
        // A power of two, by its bits.
        let peak = bitcast<u32>(largest_one(${Array.from({ length: eights }, (_, i) => `abs(own${i})`).reduce((x, y) => `max(${x}, ${y})`)})) & 0x7f800000u;
        let factor = bitcast<f32>(0x7f000000u - peak);
        workgroupBarrier();
        ${each(eights, i => `marks[${i}][slot][lane % 4] = mark${i}; ${weigh(Q, i)}`)}
        workgroupBarrier();
        ${eachPair((run, h) => each(Q, q => `var d${run}_${h}_${q} = ${type}();`, ' '))}
        ${each(eights, i => each(fours.length, f => multiply(Q, i, f)))}
        // The last ones are asked for twice: a branch would keep a compiler from asking early.
        let next = min(first + ${EIGHT * eights}, ${P - EIGHT * eights}u);
        ${loads(r, 'next')}
        ${each(vectors(Q), v => `let unit${v} = whole${v} * vec4f(bitcast<f32>(peak));`)}
        ${each(runs.length, run => each(4, j => each(vectors(Q), v => `sum${r}_${run}_${j}_${v} = fma(vec4f${vectorOf(Q, v, q => `f32(d${run}_${j % 2}_${q}.${j < 2 ? 'x' : 'y'})`)}, unit${v}, sum${r}_${run}_${j}_${v});`, ' ')))}
      }
    }`;
  // Of two tokens' lanes those of the first have the lower run of dims in the end, and the others the upper one.
  const whole = (r: number, j: number, v: number) =>
    nibbles
      ? `select(sum${r}_1_${j}_${v} * 0.0625, sum${r}_0_${j}_${v}, own_four == 0) + across(select(sum${r}_0_${j}_${v}, sum${r}_1_${j}_${v} * 0.0625, own_four == 0), 16)`
      : `sum${r}_0_${j}_${v}`;
  return {
    name: `blocks ${name}`,
    dim: D,
    enable,
    // Weights, two queries to a word, token by token.
    room: Q => (P * vectors(Q)) / 2,
    dimOf: (r, j) =>
      `(${128 * r}${nibbles ? ' + 16 * own_four' : ''} + 64 * pair + select(select(4 * unit + ${j} - 2, ${j < 2 ? 4 * words - 2 + j : j - 2}u, unit == 0), ${BLOCK + j} + 4 * (unit - ${words}), unit >= ${words}))`,
    text: Q => `
var<workgroup> marks: array<array<vec4u, ${EIGHT}>, ${eights}>;
var<workgroup> weighed: array<array<vec4u, ${EIGHT * 4 * vectors(Q)}>, ${eights}>;`,
    declare: Q => `
  // Scales: of a block and four tokens.
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
  // No compiler shall know it: it would take two constants one by one.
  let magic = ${nibbles ? '0x64006400u' : '0x64806480u'} ^ (p.four >> 8u);
  ${each(rounds, r => each(runs.length, run => each(4, j => each(vectors(Q), v => `var sum${r}_${run}_${j}_${v} = vec4f(0.0);`, ' '))))}`,
    ask: () => loads(0, '0', 'var '),
    sum: (Q, tokens) => `
    workgroupBarrier();
    ${each(roundsOf(P), c => each(4, j => `{ let t = ${tokens.at(c, j)}; ${P % 128 === 0 ? '' : `if (t < ${P}) `}{ ${each(2 * vectors(Q), u => `{ let at = t * ${2 * vectors(Q)} + ${u}; room[at / 4][at % 4] = pack2x16float(vec2f(${[2 * u, 2 * u + 1].map(q => `w${c}_${Math.min(q, Q - 1)}[${j}]`).join(', ')})); }`, ' ')} } }`))}
    workgroupBarrier();
    ${each(rounds, r => round(Q, r))}`,
    result: Q => each(rounds, r => each(4, j => each(vectors(Q), v => `o${r}_${j}_${v} = ${whole(r, j, v)};`))),
  };
}
