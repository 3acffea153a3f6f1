/**
 * Sampling on the GPU, as engine/sample.ts does it: temperature, then min-p, top-k and top-p, each on the tokens that
 * the previous filter kept, then a draw. `findMaxLogit` uses many workgroups per row, and is all that greedy sampling needs;
 * `sample` uses one workgroup per row.
 *
 * Tokens are ordered by descending logit, equal logits by ascending id. Every filter, and the draw, is the same question:
 * at which token does a running sum (of tokens, or of weights) reach a goal? A binary search over the bits of the logit
 * and then over the id answers it, without sorting.
 */

import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';

const FIND_MAX_SIZE = 256;
/** Workgroups per row of `findMaxLogit`, and the words each writes: largest key, its lowest id, whether a logit is not finite. */
export const MAXIMA_PER_ROW = 64;
export const WORDS_PER_MAXIMUM = 3;
/** Words per request: row, temperature, top-k, top-p, min-p, random number. */
export const WORDS_PER_REQUEST = 6;
/** The result for a row with no valid logits. */
export const NO_TOKEN = 0xffffffff;

/** Maps a float to a u32 of the same order. */
const keyOf = /* wgsl */ `
fn key_of(x: f32) -> u32 {
  let bits = select(bitcast<u32>(x), 0u, x == 0);
  return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}`;

export const findMaxLogit: Kernel = {
  name: 'find max logit',
  summary: 'Finds the largest logit of each row, in partial results.',
  params: u32('requests', 'vocab'),
  buffers: [readBuffer('data', 'u32'), readBuffer('logits', 'f32'), writeBuffer('maxima', 'u32')],
  size: FIND_MAX_SIZE,
  body: /* wgsl */ `
${keyOf}
var<workgroup> keys: array<u32, ${FIND_MAX_SIZE}>;
var<workgroup> ids: array<u32, ${FIND_MAX_SIZE}>;
var<workgroup> invalid: array<u32, ${FIND_MAX_SIZE}>;
fn main(group: vec3u, lane: u32) {
  let row = data[p.requests + ${WORDS_PER_REQUEST} * group.y] * p.vocab;
  var best = 0u;
  var id = p.vocab;
  var bad = 0u;
  for (var i = group.x * ${FIND_MAX_SIZE} + lane; i < p.vocab; i += ${FIND_MAX_SIZE * MAXIMA_PER_ROW}) {
    let x = logits[row + i];
    let bits = bitcast<u32>(x);
    // NaN and +Infinity, by their bits: compilers may assume that floats are neither.
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) { bad = 1u; }
    let key = key_of(x);
    if (key > best || (key == best && i < id)) { best = key; id = i; }
  }
  keys[lane] = best;
  ids[lane] = id;
  invalid[lane] = bad;
  for (var n = ${FIND_MAX_SIZE / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) {
      let other = lane + n;
      if (keys[other] > keys[lane] || (keys[other] == keys[lane] && ids[other] < ids[lane])) {
        keys[lane] = keys[other];
        ids[lane] = ids[other];
      }
      invalid[lane] |= invalid[other];
    }
  }
  if (lane == 0) {
    let at = (group.y * ${MAXIMA_PER_ROW} + group.x) * ${WORDS_PER_MAXIMUM};
    maxima[at] = keys[0];
    maxima[at + 1] = ids[0];
    maxima[at + 2] = invalid[0];
  }
}`,
};

/** `size`: invocations per row. Results are written from `first` on. */
export const sample = (size: number): Kernel => ({
  name: `sample ${size}`,
  summary: 'Samples one token per row: temperature, min-p, top-k, top-p.',
  params: u32('requests', 'vocab', 'first'),
  buffers: [
    readBuffer('data', 'u32'),
    readBuffer('logits', 'f32'),
    readBuffer('maxima', 'u32'),
    writeBuffer('tokens', 'u32'),
  ],
  size,
  body: /* wgsl */ `
${keyOf}
var<workgroup> sums: array<f32, ${size}>;
/** The tokens up to and including this one. */
struct Cut { key: u32, id: u32 }
struct Request { row: u32, max_logit: f32, floor: f32, temperature: f32 }

fn within(cut: Cut, key: u32, id: u32) -> bool { return key > cut.key || (key == cut.key && id <= cut.id); }
fn weight(s: Request, x: f32) -> f32 { return select(0.0, exp((x - s.max_logit) / s.temperature), x >= s.floor); }

fn total(lane: u32, x: f32) -> f32 {
  workgroupBarrier();
  sums[lane] = x;
  for (var n = ${size / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) { sums[lane] += sums[lane + n]; }
  }
  return workgroupUniformLoad(&sums[0]);
}
/** Sum over the tokens within both cuts: of 1 if counted, else of weights. */
fn mass(lane: u32, s: Request, kept: Cut, cut: Cut, counted: bool) -> f32 {
  var sum = 0.0;
  for (var i = lane; i < p.vocab; i += ${size}) {
    let x = logits[s.row + i];
    let key = key_of(x);
    if (within(kept, key, i) && within(cut, key, i)) { sum += select(weight(s, x), 1.0, counted); }
  }
  return total(lane, sum);
}

/** The first token at which the sum reaches the goal; with exceed, at which it is above the goal. */
fn search(lane: u32, s: Request, kept: Cut, goal: f32, counted: bool, exceed: bool) -> Cut {
  var low = 0u;
  var high = key_of(s.max_logit);
  while (low < high) {
    let middle = low + (high - low) / 2 + 1;
    let sum = mass(lane, s, kept, Cut(middle, p.vocab), counted);
    if (sum > goal || (sum == goal && !exceed)) { low = middle; } else { high = middle - 1; }
  }
  let key = low;
  low = 0;
  high = p.vocab - 1;
  while (low < high) {
    let middle = (low + high) / 2;
    let sum = mass(lane, s, kept, Cut(key, middle), counted);
    if (sum > goal || (sum == goal && !exceed)) { high = middle; } else { low = middle + 1; }
  }
  return Cut(key, low);
}

/** The first token, in order of ids, at which the sum of weights exceeds the goal. */
fn search_ids(lane: u32, s: Request, goal: f32) -> u32 {
  var low = 0u;
  var high = p.vocab - 1;
  while (low < high) {
    let middle = (low + high) / 2;
    var sum = 0.0;
    for (var i = lane; i <= middle; i += ${size}) { sum += weight(s, logits[s.row + i]); }
    if (total(lane, sum) > goal) { high = middle; } else { low = middle + 1; }
  }
  return low;
}

fn main(group: vec3u, lane: u32) {
  let at = p.requests + ${WORDS_PER_REQUEST} * group.x;
  let row = data[at] * p.vocab;
  let temperature = bitcast<f32>(data[at + 1]);
  let top_k = data[at + 2];
  let top_p = bitcast<f32>(data[at + 3]);
  let min_p = bitcast<f32>(data[at + 4]);
  let random = bitcast<f32>(data[at + 5]);
  var top = 0u;
  var greedy = p.vocab;
  var bad = 0u;
  for (var n = 0u; n < ${MAXIMA_PER_ROW}; n++) {
    let word = (group.x * ${MAXIMA_PER_ROW} + n) * ${WORDS_PER_MAXIMUM};
    if (maxima[word] > top || (maxima[word] == top && maxima[word + 1] < greedy)) { top = maxima[word]; greedy = maxima[word + 1]; }
    bad |= maxima[word + 2];
  }
  if (bad == 1 || top <= key_of(-3.4e38)) {
    if (lane == 0) { tokens[p.first + group.x] = ${NO_TOKEN}u; }
    return;
  }
  if (temperature == 0 || top_k == 1) {
    if (lane == 0) { tokens[p.first + group.x] = greedy; }
    return;
  }
  let max_logit = logits[row + greedy];
  let s = Request(row, max_logit, select(-3.4e38, max_logit + temperature * log(min_p), min_p > 0), temperature);
  let all = Cut(0, p.vocab);
  if (top_k == 0 && top_p == 1) {
    let id = search_ids(lane, s, random * mass(lane, s, all, all, false));
    if (lane == 0) { tokens[p.first + group.x] = id; }
    return;
  }
  var kept = all;
  if (top_k > 0 && top_k < p.vocab) { kept = search(lane, s, all, f32(top_k), true, false); }
  if (top_p < 1) { kept = search(lane, s, kept, top_p * mass(lane, s, kept, all, false), false, false); }
  let cut = search(lane, s, kept, random * mass(lane, s, kept, all, false), false, true);
  if (lane == 0) { tokens[p.first + group.x] = cut.id; }
}`,
});
