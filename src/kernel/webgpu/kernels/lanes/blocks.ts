/**
 * llama.cpp's blocks (q8_0, q4_0) as integers: rows of blocks of 32 dims, each a scale (f16) and its codes. Blocks begin at
 * multiples of two bytes, but rows of four at multiples of eight.
 *
 *   keys     a lane has a block of a token, as the words that it lies in, against an int8 query that was moved by as many
 *            bytes and is zero where the words hold something else; then the lanes of a token swap sums (swap.ts)
 *   values   a lane has four dims, a word of codes a token; words of four tokens are turned about and meet weights of 8 bits
 *            that have the scales in them, so every 32 dims have weights of their own
 */

import type { Fragment } from '../../../fragment.ts';
import { int8Words } from '../ints.ts';
import type { PageShape } from '../shape.ts';
import { each, float, turnAbout } from '../text.ts';
import { type KeyPart, of, roundsOf, type ValuePart, vectorOf, vectors } from './attend.ts';
import { swapping } from './swap.ts';
import { LANES } from './talk.ts';
import { sumOfBytes, weighedBytes } from './weighed.ts';

const BLOCK = 32;
/** Fours of tokens that are read before the first of them is used. */
const AHEAD = 4;

/** Words of codes a block; of a word, bytes for dims in order, or nibbles for two runs of dims 16 apart. */
function blocksOf({ page, codedDim, sharedBytes, blockBytes }: Fragment, { headDim: D, pageTokens: P }: PageShape) {
  if ((page.kind !== 'q8_0' && page.kind !== 'q4_0') || codedDim !== D || D % 128 !== 0 || P % 4 !== 0)
    return undefined;
  if (sharedBytes % 8 !== 0 || blockBytes % 8 !== 0) return undefined;
  const nibbles = page.kind === 'q4_0';
  const words = nibbles ? 4 : 8;
  return { nibbles, words, bytes: 2 + 4 * words, blocks: D / BLOCK };
}

export function blockKeys(name: string, fragment: Fragment, shape: PageShape): KeyPart | undefined {
  const kind = blocksOf(fragment, shape);
  if (!kind || fragment.turn || !Number.isInteger(Math.log2(kind.blocks))) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { nibbles, words, bytes, blocks } = kind;
  // The words from the pair on that has the scale.
  const pairs = Math.ceil((words + 2) / 2);
  const runs = nibbles ? 2 : 1;
  const swap = swapping(blocks, false);
  const word = (e: number, k: number) => `r${e}_${k >> 1}[${k & 1}]`;
  const codes = (e: number, k: number, run: number) =>
    !nibbles ? word(e, k) : run === 0 ? `${word(e, k)} & 0x0f0f0f0fu` : `(${word(e, k)} >> 4u) & 0x0f0f0f0fu`;
  const leaf = (Q: number, e: number) => `
      ${each(vectors(Q), v => `var sum${e}_${v} = bias${v};`, ' ')}
      ${each(2 * pairs, k => each(runs, run => `{ let c = ${codes(e, k, run)}; ${each(Q, q => `${of(`sum${e}_`, q)} += dot4I8Packed(c, ${of(`x${run}_${k}_`, q)});`, ' ')} }`, ' '))}
      { let both = unpack2x16float(select(r${e}_0.x, r${e}_0.y, scale_second)); let scale = select(both.x, both.y, scale_high);
      ${each(vectors(Q), v => `part${e}_${v} = vec4f(sum${e}_${v}) * scale;`, ' ')} }`;
  const sums = (Q: number) =>
    each(
      roundsOf(P),
      c => `
    ${each(Q, q => `var dots${c}_${q} = vec4f(0.0);`, ' ')}
    for (var batch = 0u; batch < ${Math.min(4, Math.ceil((P - 128 * c) / LANES))}; batch++) {
      let base = ${128 * c} + batch * ${LANES} + lane / ${blocks} * ${blocks};
      ${each(blocks, e => each(vectors(Q), v => `var part${e}_${v} = vec4f(0.0);`, ' '))}
      ${each(blocks, e => `${each(pairs, k => `let r${e}_${k} = pool2[keyBlock / 8 + min(base + ${e}, ${P - 1}u) * ${(blocks * bytes) / 8} + first_pair + ${k}];`, ' ')}`)}
      ${swap.each(
        vectors(Q),
        () => '',
        e => leaf(Q, e),
        (e, v) => `part${e}_${v}`,
      )}
      let mine = vec4u(batch) == vec4u(0, 1, 2, 3);
      ${each(Q, q => `dots${c}_${q} = select(dots${c}_${q}, vec4f(${of(swap.result, q)}), mine);`)}
    }`,
    );
  return {
    name: `blocks ${name}`,
    dim: D,
    words: int8Words(D),
    int8: true,
    loaded: 0,
    strided: true,
    text: () => `${swap.text}
/** Word n of a block's int8 query, from \`from\` on, moved by so many bytes (an even number). */
fn moved(from_word: u32, n: u32, bytes: u32) -> u32 {
  let whole = bytes / 4;
  let high = n - whole;
  let upper = select(0u, queries[from_word + min(high, ${words - 1}u)], high < ${words});
  let lower = select(0u, queries[from_word + min(high - 1, ${words - 1}u)], high - 1 < ${words});
  return select(upper, (upper << 16) | (lower >> 16), (bytes & 2) == 2);
}`,
    load: Q => `
  let block_bytes = lane % ${blocks} * ${bytes};
  let first_pair = block_bytes / 8;
  let scale_second = block_bytes % 8 >= 4;
  let scale_high = (block_bytes & 2) == 2;
  ${each(runs, run => each(2 * pairs, k => each(vectors(Q), v => `let x${run}_${k}_${v} = vec4u${vectorOf(Q, v, q => `moved(origin${q} + lane % ${blocks} * ${BLOCK / 4} + ${4 * run}, ${k}u, block_bytes % 8 + 2)`)};`, ' ')))}
  ${
    nibbles
      ? each(
          vectors(Q),
          v =>
            `var bias${v} = vec4i(0); ${each(2 * pairs, k => each(runs, run => `bias${v} -= vec4i${vectorOf(Math.min(4, Q - 4 * v), 0, q => `dot4I8Packed(x${run}_${k}_${v}[${q}], 0x08080808u)`)};`, ' '), ' ')}`,
        )
      : each(vectors(Q), v => `let bias${v} = vec4i(0);`)
  }
  ${each(2, n => each(vectors(Q), v => `let scalars${n}_${v} = bitcast<vec4f>(vec4u${vectorOf(Q, v, q => `queries[origin${q} + ${D / 4 + 2 * n}]`)});`))}`,
    sums,
    score: (q, c) => `fma(dots${c}_${q}, vec4f(${of('scalars0_', q)}), vec4f(${of('scalars1_', q)}))`,
  };
}

export function blockValues(name: string, fragment: Fragment, shape: PageShape): ValuePart | undefined {
  const kind = blocksOf(fragment, shape);
  if (!kind) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const { nibbles, words, bytes, blocks } = kind;
  const weighed = weighedBytes(P, blocks);
  const most = (b: number) => `most_scale${b >> 2}[${b & 3}]`;
  const own = (r: number) => `((lane + ${LANES * r}) / ${BLOCK / 4})`;
  const ofBlock = (r: number, text: (b: number) => string) =>
    Array.from({ length: blocks }, (_, b) => text(b)).reduce(
      (all, one, b) => `select(${all}, ${one}, ${own(r)} == ${b})`,
    );
  const peak = (b: number) =>
    Array.from({ length: roundsOf(P) }, (_, c) => `abs(scales${b}_${c})`).reduce((x, y) => `max(${x}, ${y})`);
  // Scales of q4_0 may be negative: then codes are turned, 15 - code, and count from 7 rather than 8 on.
  const signs = `{
      ${each(roundsOf(P), c =>
        each(
          blocks,
          b => `if (lane + ${LANES * c} < ${P / 4}) {
        let g = lane + ${LANES * c};
        let negative = vec4<bool>(${each(4, j => `(pool[(valueBlock + ((4 * g + ${j}) * ${blocks} + ${b}) * ${bytes}) / 4] & select(0x8000u, 0x80000000u, ((valueBlock + ((4 * g + ${j}) * ${blocks} + ${b}) * ${bytes}) & 2) == 2)) != 0`, ', ')});
        flips[${(b * P) / 4} + g] = pack4xU8(select(vec4u(0), vec4u(15), negative));
      }`,
        ),
      )}
    }`;
  const round = (Q: number, r: number) => `{
      let own_block = min(${own(r)}, ${blocks - 1}u);
      let part = (lane + ${LANES * r}) % ${BLOCK / 4};
      let shift = part / ${words} * 4;
      let first = valueBlock + own_block * ${bytes} + 2 + part % ${words} * 4;
      let odd = (first & 2) == 2;
      let next = select(0u, 1u, odd);
      ${each(4, j => each(vectors(Q), v => `var d${j}_${v} = vec4u(0);`, ' '))}
      for (var first_four = 0u; first_four < ${P / 4}; first_four += ${AHEAD}) {
        ${each(AHEAD, u => `let g${u} = first_four + ${u}; ${each(4, i => `let at${u}_${i} = first / 4 + (4 * g${u} + ${i}) * ${(blocks * bytes) / 4}; let low${u}_${i} = pool[at${u}_${i}]; let high${u}_${i} = pool[at${u}_${i} + next];`)}`)}
        ${each(
          AHEAD,
          u => `{
        ${each(4, i => `let word${i} = select(low${u}_${i}, (low${u}_${i} >> 16) | (high${u}_${i} << 16), odd);`)}
        ${each(4, i => (nibbles ? `let x${i} = (word${i} >> shift) & 0x0f0f0f0fu;` : `let x${i} = word${i} ^ 0x80808080u;`))}
        ${turnAbout}
        ${nibbles ? `let turn = flips[own_block * ${P / 4} + g${u}];` : ''}
        ${each(4, j => `let z${j} = y${j}${nibbles ? ' ^ turn' : ''};`, ' ')}
        ${each(vectors(Q), v => `let b${v} = ${weighed.at(Q, `own_block * ${P / 4} + g${u}`, v)};`, ' ')}
        ${each(Q, q => each(4, j => `${of(`d${j}_`, q)} += dot4U8Packed(z${j}, ${of('b', q)});`, ' '))} }`,
        )}
      }
      let own_most = ${ofBlock(r, most)};
      ${each(vectors(Q), v => `{ let units = whole${v} * own_most * ${float(1 / 255)}; ${each(4, j => `o${r}_${j}_${v} = fma(vec4f(d${j}_${v}), units, o${r}_${j}_${v} * kept${v});`, ' ')} }`)}
    }`;
  const offsets = (b: number) => `vec4f(vec4u(${each(4, k => `dot4U8Packed(words[${k}], turned_offsets${b})`, ', ')}))`;
  return {
    name: `blocks ${name}`,
    dim: D,
    loaded: weighed.loaded + (nibbles ? (blocks * P) / 4 : 0),
    room: weighed.room,
    fetch: tokens =>
      each(roundsOf(P), c =>
        each(
          blocks,
          b =>
            `let scales${b}_${c} = vec4f(${each(4, j => `half(valueBlock + (min(${tokens.at(c, j)}, ${P - 1}u) * ${blocks} + ${b}) * ${bytes})`, ', ')});`,
        ),
      ),
    text: Q => `${weighed.declare(Q)}
${nibbles ? `var<workgroup> flips: array<u32, ${(blocks * P) / 4}>;` : ''}
fn most4(x: vec4f) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }`,
    declare: Q => each(blocks, b => each(vectors(Q), v => `var more${b}_${v} = vec4f(0.0);`, ' ')),
    sum: (Q, tokens) => `
    ${nibbles ? `workgroupBarrier(); ${signs}` : ''}
    ${each(vectors(blocks), v => `let most_scale${v} = largest(vec4f${vectorOf(blocks, v, b => `most4(${peak(b)})`)});`)}
    ${each(blocks, b => each(vectors(Q), v => `var added${b}_${v} = vec4f(0.0);`, ' '))}
    ${weighed.put(
      Q,
      tokens,
      'g',
      (q, c, b) => `(w${c}_${q} * abs(scales${b}_${c}) / max(${most(b)}, 1e-30))`,
      (v, _, b) =>
        nibbles
          ? `{ let turned_offsets${b} = 0x08080808u - ((flips[${(b * P) / 4} + g] >> 3) & 0x01010101u); added${b}_${v} -= ${offsets(b)} * (${most(b)} * ${float(1 / 255)}); }`
          : `added${b}_${v} -= ${sumOfBytes} * (${most(b)} * ${float(128 / 255)});`,
    )}
    ${each(blocks, b => each(vectors(Q), v => `more${b}_${v} = fma(more${b}_${v}, kept${v}, added${b}_${v} * whole${v});`, ' '))}
    ${each(roundsOf(D), r => round(Q, r))}`,
    result: Q => `
  ${each(blocks, b => each(vectors(Q), v => `more${b}_${v} = all_of(more${b}_${v});`, ' '))}
  ${each(roundsOf(D), r => each(vectors(Q), v => `{ let more = ${ofBlock(r, b => `more${b}_${v}`)}; ${each(4, j => `o${r}_${j}_${v} += more;`, ' ')} }`))}`,
  };
}
