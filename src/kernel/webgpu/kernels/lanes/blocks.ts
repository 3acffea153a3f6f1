/**
 * llama.cpp's blocks (q8_0, q4_0) as integers: rows of blocks of 32 dims, each a scale (f16) and its codes. Blocks begin at
 * multiples of two bytes. Every byte is read once, and lanes side by side read what lies side by side.
 *
 *   keys     a lane has a block, as the vectors that it lies in, against an int8 query that was moved by as many bytes and is
 *            zero where the vectors hold something else; then the lanes of a token swap sums (swap.ts)
 *   values   a lane has a word of codes a token. Eight tokens at a time a lane has a scale too, and makes the weights of four
 *            tokens, for a block and a query, bytes that have the scales in them. Words of four tokens are turned about and
 *            meet them.
 */

import type { Fragment } from '../../../fragment.ts';
import { int8Words } from '../domain.ts';
import type { PageShape } from '../shape.ts';
import { each, float, turnAbout } from '../text.ts';
import { type KeyPart, LOG2E, of, roundsOf, type ValuePart, vectorOf, vectors, withPlus } from './attend.ts';
import { swapping } from './swap.ts';
import { LANES } from './talk.ts';

const BLOCK = 32;
/** Blocks of keys that a lane reads before the first of them is used, and that meet the words of a query together. */
const KEYS = { ahead: 4, together: 2 };
/** Tokens of which a lane has a scale, and makes weights. */
const EIGHT = 8;
/** Eights that are read before the first of them is used, and whose weights are made together. */
const VALUES = { q8_0: { ahead: 4, together: 2 }, q4_0: { ahead: 2, together: 1 } };
/** How much larger a scale may be than those seen before it until sums must be put away. */
const SLACK = 1.25;

/** Words of codes a block; of a word, bytes for dims in order, or nibbles for two runs of dims 16 apart. */
function blocksOf({ page, codedDim, sharedBytes, blockBytes }: Fragment, { headDim: D, pageTokens: P }: PageShape) {
  if ((page.kind !== 'q8_0' && page.kind !== 'q4_0') || codedDim !== D || D % 128 !== 0) return undefined;
  if (P % EIGHT !== 0 || [sharedBytes, blockBytes].some(n => n % 16 !== 0)) return undefined;
  const nibbles = page.kind === 'q4_0';
  const words = nibbles ? 4 : 8;
  // Pages of few tokens are read an eight at a time.
  const { ahead, together } =
    P % (EIGHT * VALUES[page.kind].ahead) === 0 ? VALUES[page.kind] : { ahead: 1, together: 1 };
  return { nibbles, words, bytes: 2 + 4 * words, blocks: D / BLOCK, runs: nibbles ? 2 : 1, ahead, together };
}

export function blockKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const kind = blocksOf(fragment, shape);
  if (!kind || fragment.turn || !Number.isInteger(Math.log2(kind.blocks))) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { nibbles, words, bytes, blocks, runs } = kind;
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
          const block = `min((${128 * c} + ${LANES} * ${batch}) * ${blocks} + ${LANES * e} + lane, ${P * blocks - 1}u)`;
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
    loaded: blocks * (2 * pairs * runs + 4),
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
 * have.
 *
 * Scales, weights and ends of four tokens lie together, in slots: the slot of lanes 4 s to 4 s + 3 is that of their own block
 * and of one of two fours, and `other` is the other four's.
 */
export function blockValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const kind = blocksOf(fragment, shape);
  if (!kind) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { nibbles, words, bytes, blocks, runs, ahead, together } = kind;
  const row = (blocks * bytes) / 4;
  const rounds = roundsOf(D);
  const other = nibbles ? 4 : 1;
  // Fours of an eight that a lane has words of: the slots of its block, and of both ends of its two blocks.
  const fours = nibbles
    ? [{ first: '4 * own_four', own: 'slot', even: '(4 * own_four + 2 * pair)', odd: '(4 * own_four + 2 * pair + 1)' }]
    : [0, 1].map(f => ({
        first: `${4 * f}`,
        own: `(2 * own_block + ${f})`,
        even: `(4 * pair + ${f})`,
        odd: `(4 * pair + ${2 + f})`,
      }));
  const load = (r: number, first: string, a: number) => {
    const at = (t: string) => `valueBlock / 4 + (${first} + ${EIGHT * a} + ${t}) * ${row} + ${r * bytes}`;
    return [
      { name: `mark${a}`, text: `pool[${at('own_token')} + scale_at]` },
      ...fours.flatMap(({ first: t }, f) =>
        Array.from({ length: 4 }, (_, i) => ({
          name: `word${a}_${f}_${i}`,
          text: `pool[${at(`${t} + ${i}`)} + unit_at]`,
        })),
      ),
    ];
  };
  const loads = (r: number, first: string, a: number, word: string) =>
    load(r, first, a)
      .map(({ name: id, text }) => `${word}${id} = ${text};`)
      .join(' ');
  const dims = (Q: number, text: (run: number, j: number, v: number) => string) =>
    each(runs, run => each(4, j => each(vectors(Q), v => text(run, j, v), ' ')));
  const putAway = (Q: number, r: number) => `
        ${each(vectors(Q), v => `let unit${v} = whole${v} * vec4f(most * ${float(1 / 255)});`)}
        ${dims(Q, (run, j, v) => `sum${r}_${run}_${j}_${v} = fma(vec4f(d${run}_${j}_${v}), unit${v}${run === 1 ? ' * 0.0625' : ''}, sum${r}_${run}_${j}_${v}); d${run}_${j}_${v} = vec4u(0);`)}`;
  // Negative scales, of q4_0: codes are turned, 15 - code, and count from 7 rather than 8 on.
  const weigh = (Q: number, r: number, a: number, i: number) => `
        ${nibbles ? `let flip${i} = pack4xU8(select(vec4u(0), vec4u(255), own${i} < vec4f(0.0)));` : ''}
        ${each(
          vectors(Q),
          v => `
        let pairs${i}_${v} = room[(min(${4 * v} + lane % 4, ${Q - 1}u) / 2 * ${P} + first + ${EIGHT * a}) / 4 + own_four] >> vec4u(lane % 2 * 16);
        let weights${i}_${v} = vec4f(${each(4, k => `unpack2x16float(pairs${i}_${v}[${k}]).x`, ', ')});
        let bytes${i}_${v} = whole_bytes(fma(weights${i}_${v} * abs(own${i}), vec4f(factor), pattern));
        weighed[${i}][${EIGHT * v} + slot][lane % 4] = bytes${i}_${v};
        added${r}_${v} = fma(f32(dot4U8Packed(bytes${i}_${v}, ${nibbles ? `0x08080808u - (flip${i} & 0x01010101u)` : '0x80808080u'})), most * ${float(1 / 255)}, added${r}_${v});`,
        )}`;
  const multiply = (Q: number, a: number, i: number, f: number) => `{
        ${each(4, k => `let x${k} = select(word${a}_${f}_${k}, ends${i}_${f}[${k}], unit == 0)${nibbles ? '' : ' ^ 0x80808080u'};`)}
        ${turnAbout}
        ${each(vectors(Q), v => `let b${v} = weighed[${i}][${EIGHT * v} + ${fours[f].own}];`, ' ')}
        ${each(runs, run => each(4, j => `{ let c = ${!nibbles ? `y${j}` : `(y${j} ^ flip${i}) & ${run === 0 ? '0x0f0f0f0fu' : '0xf0f0f0f0u'}`}; ${each(Q, q => `${of(`d${run}_${j}_`, q)} += dot4U8Packed(c, ${of('b', q)});`, ' ')} }`))}
      }`;
  const eights = (Q: number, r: number, a: number) => `{
        ${each(
          together,
          i => `{ let both = unpack2x16float(mark${a + i});
        marks[${i}][slot][lane % 4] = mark${a + i};
        scales[${i}][slot][lane % 4] = select(both.x, both.y, odd_block); }`,
        )}
        workgroupBarrier();
        ${each(
          together,
          i => `let own${i} = scales[${i}][slot];
        let peaks${i} = max(abs(own${i}), abs(scales[${i}][slot ^ ${other}]));
        ${each(fours.length, f => `let ends${i}_${f} = (marks[${i}][${fours[f].even}] & vec4u(0xffff0000u)) | (marks[${i}][${fours[f].odd}] & vec4u(0xffffu));`)}`,
        )}
        let peaks = ${Array.from({ length: together }, (_, i) => `peaks${i}`).reduce((x, y) => `max(${x}, ${y})`)};
        let peak = max(max(peaks.x, peaks.y), max(peaks.z, peaks.w));
        if (peak > most) {
        ${putAway(Q, r)}
        most = ${SLACK} * peak;
        factor = 255.0 / most;
        }
        ${each(together, i => weigh(Q, r, a + i, i))}
        workgroupBarrier();
        ${each(together, i => each(fours.length, f => multiply(Q, a + i, i, f)))}
        if (first + ${EIGHT * ahead} < ${P}) {
        ${each(together, i => loads(r, `first + ${EIGHT * ahead}`, a + i, ''))}
        }
      }`;
  const round = (Q: number, r: number) => `{
      ${dims(Q, (run, j, v) => `var d${run}_${j}_${v} = vec4u(0); sum${r}_${run}_${j}_${v} *= kept${v};`)}
      ${each(vectors(Q), v => `var added${r}_${v} = 0.0;`, ' ')}
      var most = 0.0;
      var factor = 0.0;
      ${r > 0 ? each(ahead, a => loads(r, '0', a, '')) : ''}
      for (var first = 0u; first < ${P}; first += ${EIGHT * ahead}) {
        ${each(ahead / together, n => eights(Q, r, n * together))}
      }
      ${putAway(Q, r)}
      ${each(vectors(Q), v => `more${r}_${v} = fma(more${r}_${v}, kept${v}[lane % 4], added${r}_${v} * whole${v}[lane % 4]);`)}
    }`;
  // Of two tokens' lanes those of the first have the lower run of dims in the end, and the others the upper one.
  const whole = (r: number, j: number, v: number) =>
    nibbles
      ? `select(sum${r}_1_${j}_${v}, sum${r}_0_${j}_${v}, own_four == 0) + across(select(sum${r}_0_${j}_${v}, sum${r}_1_${j}_${v}, own_four == 0), 16)`
      : `sum${r}_0_${j}_${v}`;
  return {
    name: `blocks ${name}`,
    dim: D,
    loaded: Math.max(P, D),
    // Weights, two queries to a word, token by token.
    room: Q => Math.max((P * Math.ceil(Q / 2)) / 4, EIGHT * rounds * vectors(Q)),
    dimOf: (r, j) =>
      `(${128 * r}${nibbles ? ' + 16 * own_four' : ''} + 64 * pair + select(select(4 * unit + ${j} - 2, ${j < 2 ? 4 * words - 2 + j : j - 2}u, unit == 0), ${BLOCK + j} + 4 * (unit - ${words}), unit >= ${words}))`,
    text: Q => `
var<workgroup> marks: array<array<vec4u, ${EIGHT}>, ${together}>;
var<workgroup> scales: array<array<vec4f, ${EIGHT}>, ${together}>;
var<workgroup> weighed: array<array<vec4u, ${EIGHT * vectors(Q)}>, ${together}>;
/** Four whole numbers up to 255, as bytes: of f32 they are added to 2^15, so that they and no fraction are the second byte. */
fn whole_bytes(x: vec4f) -> u32 {
  let bits = bitcast<vec4u>(x);
  let low = ((bits.x >> 8) & 0xffu) | (bits.y & 0xff00u);
  let high = ((bits.z >> 8) & 0xffu) | (bits.w & 0xff00u);
  return low | (high << 16);
}`,
    declare: Q => `
  let slot = lane / 4;
  let own_block = ${nibbles ? 'slot % 4' : 'slot / 2'};
  let own_four = ${nibbles ? 'slot / 4' : 'slot % 2'};
  let odd_block = own_block % 2 == 1;
  let own_token = 4 * own_four + lane % 4;
  let scale_at = own_block * ${bytes} / 4;
  let unit = lane % ${2 * words};
  let pair = lane / ${2 * words} % 2;
  let unit_at = pair * ${bytes / 2} + unit + select(0u, 1u, unit >= ${words});
  // What is added before rounding down: eight tokens share out one.
  let pattern = vec4f(32768.0625, 32768.5625, 32768.3125, 32768.8125) + vec4f(0.125 * f32(own_four));
  ${each(rounds, r => `${dims(Q, (run, j, v) => `var sum${r}_${run}_${j}_${v} = vec4f(0.0);`)} ${each(vectors(Q), v => `var more${r}_${v} = 0.0;`, ' ')}`)}`,
    ask: () => each(ahead, a => loads(0, '0', a, 'var ')),
    sum: (Q, tokens) => `
    workgroupBarrier();
    ${each(roundsOf(P), c => each(4, j => `{ let t = ${tokens.at(c, j)}; ${P % 128 === 0 ? '' : `if (t < ${P}) `}{ ${each(Math.ceil(Q / 2), u => `room[${(u * P) / 4} + t / 4][t % 4] = pack2x16float(vec2f(w${c}_${2 * u}[${j}], w${c}_${Math.min(2 * u + 1, Q - 1)}[${j}]));`, ' ')} } }`))}
    workgroupBarrier();
    ${each(rounds, r => round(Q, r))}`,
    result: Q => `
  workgroupBarrier();
  ${each(rounds, r => each(vectors(Q), v => `room[${(r * vectors(Q) + v) * EIGHT} + slot][lane % 4] = bitcast<u32>(more${r}_${v});`))}
  workgroupBarrier();
  ${each(rounds, r => each(vectors(Q), v => `let bias${r}_${v} = bitcast<vec4f>(room[${(r * vectors(Q) + v) * EIGHT} + slot]) + bitcast<vec4f>(room[${(r * vectors(Q) + v) * EIGHT} + (slot ^ ${other})]);`))}
  ${each(rounds, r => each(4, j => each(vectors(Q), v => `o${r}_${j}_${v} = ${whole(r, j, v)} - bias${r}_${v};`)))}`,
  };
}
