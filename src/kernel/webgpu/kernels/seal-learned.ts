/** Quantization of vectors for codecs that learn from data (see seal.ts). */

import { MAX_ADDITIVE_BOOKS as MAX_BOOKS, type PageEncoding, ADDITIVE_STARTS as STARTS } from '../../page-layout.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { BLOCK, COUNT_IN_LIST, MAX_CODE, type Oaken } from './oaken.ts';
import type { PageShape } from './shape.ts';
import { each, float } from './snippets.ts';

/** Invocations per workgroup in steps 2 and 3 of sealing. */
export const SIZE = 64;

export const workgroupSum = /* wgsl */ `
var<workgroup> parts: array<f32, ${SIZE}>;
/** The sum of x over the workgroup. All lanes must call it. */
fn total(lane: u32, x: f32) -> f32 {
  workgroupBarrier();
  parts[lane] = x;
  for (var n = ${SIZE / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) { parts[lane] += parts[lane + n]; }
  }
  workgroupBarrier();
  return parts[0];
}`;

/** One workgroup per token and head: `at` is the offset of its vector in y. */
const main = ({ headDim: D, pageTokens: P }: PageShape, body: string) => `
fn main(group: vec3u, lane: u32) {
  let t = group.x; let head = group.y; let at = (head * ${P} + t) * ${D};
  ${body}
}`;

/** Stores a token's squared error as its scalar, for `sumErrors`. */
const storeError = (P: number) => `let token_error = total(lane, squares);
  if (lane == 0) { scalars[head * ${P} + t] = bitcast<u32>(token_error); }`;

/** Additive: one quad per invocation. Codes are [column][token]. */
export function quantizeQuads(shape: PageShape, tableOffset: number): string {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  return /* wgsl */ `
fn entry(column: u32, e: u32) -> vec4f {
  let at = ${tableOffset + kvHeads * (D / 4) + 1} + column * 64 + 4 * e;
  return bitcast<vec4f>(vec4u(tables[at], tables[at + 1], tables[at + 2], tables[at + 3]));
}
fn nearest(column: u32, x: vec4f) -> u32 {
  var best = 0u;
  var best_gain = -3e38;
  for (var e = 0u; e < 16; e++) {
    let y = entry(column, e);
    let gain = dot(x - 0.5 * y, y);
    if (gain > best_gain) { best_gain = gain; best = e; }
  }
  return best;
}
/** The nearest entries of a column, by insertion: what is nearer takes the place, and what was there moves on. */
fn nearest_starts(column: u32, x: vec4f) -> array<u32, ${STARTS}> {
  var starts = array<u32, ${STARTS}>();
  var gains = array<f32, ${STARTS}>();
  for (var i = 0u; i < ${STARTS}; i++) { gains[i] = -3e38; }
  for (var e = 0u; e < 16; e++) {
    let y = entry(column, e);
    var gain = dot(x - 0.5 * y, y);
    var code = e;
    for (var i = 0u; i < ${STARTS}; i++) {
      if (gain > gains[i]) {
        let moved = starts[i];
        let moved_gain = gains[i];
        starts[i] = code;
        gains[i] = gain;
        code = moved;
        gain = moved_gain;
      }
    }
  }
  return starts;
}
${main(
  shape,
  `var squares = 0.0;
  for (var q = lane; q < ${D / 4}; q += ${SIZE}) {
    let first = tables[${tableOffset} + head * ${D / 4} + q];
    let end = tables[${tableOffset} + head * ${D / 4} + q + 1];
    let quad = vec4f(y[at + 4 * q], y[at + 4 * q + 1], y[at + 4 * q + 2], y[at + 4 * q + 3]);
    if (first == end) { squares += dot(quad, quad); continue; }
    let starts = nearest_starts(first, quad);
    var smallest = 3e38;
    var best = array<u32, ${MAX_BOOKS}>();
    for (var n = 0u; n < select(1u, ${STARTS}u, end - first > 1); n++) {
      var chosen = array<u32, ${MAX_BOOKS}>();
      var rest = quad;
      for (var column = first; column < end; column++) {
        if (column == first) { chosen[0] = starts[n]; } else { chosen[column - first] = nearest(column, rest); }
        rest -= entry(column, chosen[column - first]);
      }
      let error = dot(rest, rest);
      if (error < smallest) { smallest = error; best = chosen; }
    }
    for (var column = first; column < end; column++) { codes[column * ${P} + t] = best[column - first]; }
    squares += smallest;
  }
  ${storeError(P)}`,
)}`;
}

/** Mixed: each column has its own number of bits. */
export function quantizeColumns(shape: PageShape, tableOffset: number): string {
  const { headDim: D, kvHeads } = shape;
  return main(
    shape,
    `for (var i = lane; i < ${D}; i += ${SIZE}) {
    let bits = tables[${tableOffset} + head * ${D} + i] & 7;
    let step = bitcast<f32>(tables[${tableOffset + kvHeads * D + 1} + head * ${D} + i]);
    let half_range = f32(1u << (max(bits, 1) - 1));
    let value = select(0.0, y[at + i] / step, step > 0);
    codes[at + i] = bitcast<u32>(i32(clamp(floor(value), -half_range, half_range - 1))) & ((1u << bits) - 1);
  }`,
  );
}

/** Product quantization: one subvector per invocation. */
export function quantizeWithBook(
  { subvectorDims, bookPerSubvector: perSubvector, codes }: PageEncoding & { kind: 'book' },
  shape: PageShape,
  tableOffset: number,
): string {
  const subs = shape.headDim / subvectorDims;
  const entries = 2 ** codes.bits;
  return main(
    shape,
    `var squares = 0.0;
  for (var sub = lane; sub < ${subs}; sub += ${SIZE}) {
    let book = ${tableOffset}u${perSubvector ? ` + (head * ${subs} + sub) * ${entries * subvectorDims}` : ''};
    var best = 0u;
    var best_error = 3e38;
    for (var e = 0u; e < ${entries}; e++) {
      var error = 0.0;
      for (var i = 0u; i < ${subvectorDims}; i++) {
        let c = bitcast<f32>(tables[book + e * ${subvectorDims} + i]);
        error = fma(c, 0.5 * c - y[at + sub * ${subvectorDims} + i], error);
      }
      if (error < best_error) { best_error = error; best = e; }
    }
    codes[at + sub] = best;
    for (var i = 0u; i < ${subvectorDims}; i++) {
      let rest = y[at + sub * ${subvectorDims} + i] - bitcast<f32>(tables[book + best * ${subvectorDims} + i]);
      squares = fma(rest, rest, squares);
    }
  }
  ${storeError(shape.pageTokens)}`,
  );
}

/** Sums the squared errors of a page's tokens from `p.first` on, one scalar per token and head. */
export const sumErrors = ({ kvHeads, pageTokens: P }: PageShape): Kernel => ({
  name: `sum errors ${kvHeads} ${P}`,
  summary: 'Sealing: sums the squared errors of a page, where quantizing measured them.',
  params: u32('source', 'first', 'to'),
  buffers: [readBuffer('scalars', 'u32'), writeBuffer('errors', 'f32')],
  size: SIZE,
  body: /* wgsl */ `${workgroupSum}
fn main(group: vec3u, lane: u32) {
  var sum = 0.0;
  for (var n = lane; n < ${kvHeads * P}; n += ${SIZE}) {
    if (n % ${P} >= p.first) { sum += bitcast<f32>(scalars[p.source + n]); }
  }
  let all = total(lane, sum);
  if (lane == 0) { errors[p.to] = all; }
}`,
});

/** Offsets of the scalars of a head: ranges (only of the first head), start of its lists, dropped outliers, counts per block. */
export function oakenScalars(D: number, P: number): { start: number; dropped: number; counts: number; all: number } {
  const blocks = Math.ceil(D / BLOCK);
  return { start: 6 * P, dropped: 6 * P + 1, counts: 6 * P + 2, all: 6 * P + 2 + P * blocks };
}

/**
 * Oaken in three kernels: the ranges of each token over all heads; which outliers fit into the lists; then codes and list
 * bytes, one word each, with the list bytes after all codes.
 */
export function quantizeOaken({ thresholds, listsCapacity }: Oaken, { headDim: D, kvHeads, pageTokens: P }: PageShape) {
  const [outerLow, innerLow, innerHigh, outerHigh] = thresholds.map(float);
  const { start, dropped, counts, all: S } = oakenScalars(D, P);
  const blocks = Math.ceil(D / BLOCK);
  const values = kvHeads * P * D;
  /** Scratch after the list bytes: whether inner values are listed, and the start of each block's list. */
  const scratch = values + listsCapacity;
  const groups = /* wgsl */ `
/** 0 outer, 1 middle, 2 inner. */
fn group_of(x: f32) -> u32 {
  if (x < ${outerLow} || x > ${outerHigh}) { return 0; }
  return select(2u, 1u, x < ${innerLow} || x > ${innerHigh});
}
fn is_negative(x: f32, kind: u32) -> bool {
  return x < select(select(${innerLow}, ${outerLow}, kind == 0), 0.0, kind == 2);
}
fn shift_of(kind: u32, negative: bool) -> f32 {
  if (kind == 2) { return 0.0; }
  return select(select(${innerHigh}, ${innerLow}, negative), select(${outerHigh}, ${outerLow}, negative), kind == 0);
}`;
  const ranges = /* wgsl */ `${groups}
var<workgroup> ends: array<f32, ${6 * SIZE}>;
fn main(group: vec3u, lane: u32) {
  let t = group.x;
  var lane_ends = array<f32, 6>();
  for (var head = 0u; head < ${kvHeads}; head++) {
    for (var i = lane; i < ${D}; i += ${SIZE}) {
      let x = y[(head * ${P} + t) * ${D} + i];
      let kind = group_of(x);
      let shifted = x - shift_of(kind, is_negative(x, kind));
      lane_ends[2 * kind] = min(lane_ends[2 * kind], shifted);
      lane_ends[2 * kind + 1] = max(lane_ends[2 * kind + 1], shifted);
    }
  }
  ${each(6, n => `ends[${n * SIZE} + lane] = lane_ends[${n}];`, ' ')}
  workgroupBarrier();
  if (lane < 6) {
    var end = 0.0;
    for (var n = 0u; n < ${SIZE}; n++) {
      let x = ends[lane * ${SIZE} + n];
      end = select(max(end, x), min(end, x), lane % 2 == 0);
    }
    scalars[6 * t + lane] = to_f16(end);
  }
}`;
  const block = `let first = (head * ${P} + t) * ${D} + b * ${BLOCK}; let end = first + min(${BLOCK}u, ${D} - b * ${BLOCK});`;
  const lists = /* wgsl */ `${groups}
var<workgroup> listed: array<u32, ${kvHeads * P * blocks}>;
fn bytes_of(count: u32) -> u32 { return count + select(0u, 1u, count >= ${COUNT_IN_LIST}); }
fn main(group: vec3u, lane: u32) {
  // Low half: number of outer values; high half: of outer and inner values.
  for (var n = lane; n < ${kvHeads * P * blocks}; n += ${SIZE}) {
    let head = n / ${P * blocks}; let t = n / ${blocks} % ${P}; let b = n % ${blocks};
    ${block}
    var count = 0u;
    for (var at = first; at < end; at++) {
      let kind = group_of(y[at]);
      count += select(select(0x10000u, 0u, kind == 1), 0x10001u, kind == 0);
    }
    listed[n] = count;
  }
  workgroupBarrier();
  if (lane > 0) { return; }
  var needed = 0u;
  for (var n = 0u; n < ${kvHeads * P * blocks}; n++) { needed += bytes_of(listed[n] >> 16); }
  let all_fit = needed <= ${listsCapacity};
  codes[${scratch}] = select(0u, 1u, all_fit);
  var end = 0u;
  for (var n = 0u; n < ${kvHeads * P * blocks}; n++) {
    let head = n / ${P * blocks};
    if (n % ${P * blocks} == 0) {
      scalars[head * ${S} + ${start}] = end;
      scalars[head * ${S} + ${dropped}] = 0;
    }
    var count = select(listed[n] & 0xffff, listed[n] >> 16, all_fit);
    if (end + bytes_of(count) > ${listsCapacity}) { count = 0; }
    scalars[head * ${S} + ${dropped}] += (listed[n] >> 16) - count;
    scalars[head * ${S} + ${counts} + n % ${P * blocks}] = min(${COUNT_IN_LIST}u, count);
    codes[${scratch + 1} + n] = end;
    if (count >= ${COUNT_IN_LIST}) { codes[${values} + end] = count; }
    end += bytes_of(count);
  }
  for (; end < ${listsCapacity}; end++) { codes[${values} + end] = 0; }
}`;
  const coded = /* wgsl */ `${groups}
fn main(group: vec3u, lane: u32) {
  let t = group.x; let head = group.y;
  for (var b = lane; b < ${blocks}; b += ${SIZE}) {
    ${block}
    let n = t * ${blocks} + b;
    let count = scalars[head * ${S} + ${counts} + n];
    var to = ${values} + codes[${scratch + 1} + head * ${P * blocks} + n] + select(0u, 1u, count == ${COUNT_IN_LIST});
    for (var at = first; at < end; at++) {
      let x = y[at];
      var kind = group_of(x);
      if (count == 0 || (kind == 2 && codes[${scratch}] == 0)) { kind = 1; }
      let negative = is_negative(x, kind);
      if (kind != 1) {
        codes[to] = (at - first) | select(0u, 64u, kind == 0) | select(0u, 128u, negative);
        to++;
      }
      let low = unpack2x16float(scalars[6 * t + 2 * kind]).x;
      let high = unpack2x16float(scalars[6 * t + 2 * kind + 1]).x;
      var shifted = x - shift_of(kind, negative);
      if (kind == 1 && !negative) { shifted = max(0.0, shifted); }
      var range = select(high, low, negative);
      if (kind == 1) { range = high - low; shifted -= low; }
      let part = select(shifted / range, 0.0, range == 0);
      codes[at] = u32(clamp(floor(fma(${MAX_CODE}.0, part, 0.5)), 0.0, ${MAX_CODE}.0));
    }
  }
}`;
  return { ranges, lists, values: coded };
}

/** Spectrum: codes are [head][token][pairs, cosines, sines], with 2 * dims words per token. */
export function quantizeSpectrum(
  { keptPairs, cosines }: PageEncoding & { kind: 'spectrum' },
  shape: PageShape,
  tableOffset: number,
): string {
  const { headDim: D, pageTokens: P } = shape;
  const maxCode = 2 ** (cosines.bits - 1) - 1;
  return /* wgsl */ `
var<workgroup> energies: array<f32, ${D / 2}>;
var<workgroup> chosen: array<u32, ${D / 2}>;
var<workgroup> peaks: array<f32, ${D / 2}>;
${main(
  shape,
  `for (var pair = lane; pair < ${D / 2}; pair += ${SIZE}) {
    let both = vec2f(y[at + 2 * pair], y[at + 2 * pair + 1]);
    energies[pair] = dot(both, both);
  }
  workgroupBarrier();
  for (var pair = lane; pair < ${D / 2}; pair += ${SIZE}) {
    var rank = 0u;
    for (var other = 0u; other < ${D / 2}; other++) {
      let more = energies[other] > energies[pair] || (energies[other] == energies[pair] && other < pair);
      rank += select(0u, 1u, more);
    }
    chosen[pair] = select(0u, 1u, rank < ${keptPairs});
    let rotation_at = 2 * (t * ${D / 2} + pair) + ${tableOffset};
    let c = bitcast<f32>(tables[rotation_at]);
    let s = bitcast<f32>(tables[rotation_at + 1]);
    let both = vec2f(y[at + 2 * pair], y[at + 2 * pair + 1]);
    let unrotated = vec2f(fma(both.x, c, both.y * s), fma(both.y, c, -(both.x * s)));
    y[at + 2 * pair] = unrotated.x;
    y[at + 2 * pair + 1] = unrotated.y;
    peaks[pair] = select(0.0, max(abs(unrotated.x), abs(unrotated.y)), rank < ${keptPairs});
  }
  workgroupBarrier();
  var peak = 0.0;
  for (var pair = 0u; pair < ${D / 2}; pair++) { peak = max(peak, peaks[pair]); }
  let bits = to_f16(peak);
  let scale = unpack2x16float(bits).x;
  if (lane == 0) { scalars[head * ${P} + t] = bits; }
  for (var pair = lane; pair < ${D / 2}; pair += ${SIZE}) {
    if (chosen[pair] == 0) { continue; }
    var slot = 0u;
    for (var other = 0u; other < pair; other++) { slot += chosen[other]; }
    let to = 2 * at + slot;
    codes[to] = pair;
    for (var n = 0u; n < 2; n++) {
      let part = select(y[at + 2 * pair + n] / scale * ${float(maxCode)}, 0.0, scale == 0);
      codes[to + (n + 1) * ${keptPairs}] = bitcast<u32>(i32(clamp(floor(part + 0.5), ${float(-maxCode)}, ${float(maxCode)}))) & ${2 ** cosines.bits - 1};
    }
  }`,
)}`;
}
