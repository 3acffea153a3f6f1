/**
 * Choosing a token of a row of logits where they are, as engine/sample.ts does: temperature, then min-p, top-k and top-p,
 * each on what the one before left, then a draw. `survey` finds the largest logit with many workgroups a row, which is
 * all that greedy wants; then a workgroup a row.
 *
 * Tokens have an order: the larger logit first, the lower id among equals. Every step asks where in this order a sum
 * (of tokens, or of weights) reaches a mark, and finds out by halving: first the logit, bit by bit, then the id.
 */
import type { Kernel } from '../gpu.ts';

const SURVEY_SIZE = 256;
/** Workgroups a row of `survey`, and the words that each leaves: the largest key, its lowest id, whether a logit is broken. */
export const SURVEYS = 64;
export const SURVEY = 3;
/** Words of a choice: row, temperature, top-k, top-p, min-p, random number. */
export const CHOICE = 6;
/** What stands for "none of these logits can be chosen". */
export const NONE = 0xffffffff;

/** A logit as a number whose order is theirs. */
const keyOf = /* wgsl */ `
fn key_of(x: f32) -> u32 {
  let bits = select(bitcast<u32>(x), 0u, x == 0);
  return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}`;

export const survey: Kernel = {
  name: 'survey',
  params: ['choices', 'vocab'],
  buffers: ['data: array<u32>', 'logits: array<f32>', 'write found: array<u32>'],
  size: SURVEY_SIZE,
  body: /* wgsl */ `
${keyOf}
var<workgroup> keys: array<u32, ${SURVEY_SIZE}>;
var<workgroup> ids: array<u32, ${SURVEY_SIZE}>;
var<workgroup> broken: array<u32, ${SURVEY_SIZE}>;
fn main(group: vec3u, lane: u32) {
  let row = data[p.choices + ${CHOICE} * group.y] * p.vocab;
  var best = 0u;
  var id = p.vocab;
  var bad = 0u;
  for (var i = group.x * ${SURVEY_SIZE} + lane; i < p.vocab; i += ${SURVEY_SIZE * SURVEYS}) {
    let x = logits[row + i];
    let bits = bitcast<u32>(x);
    // NaN and +Infinity, by their bits: a compiler may take it that no float is either.
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) { bad = 1u; }
    let key = key_of(x);
    if (key > best || (key == best && i < id)) { best = key; id = i; }
  }
  keys[lane] = best;
  ids[lane] = id;
  broken[lane] = bad;
  for (var n = ${SURVEY_SIZE / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) {
      let other = lane + n;
      if (keys[other] > keys[lane] || (keys[other] == keys[lane] && ids[other] < ids[lane])) {
        keys[lane] = keys[other];
        ids[lane] = ids[other];
      }
      broken[lane] |= broken[other];
    }
  }
  if (lane == 0) {
    let at = (group.y * ${SURVEYS} + group.x) * ${SURVEY};
    found[at] = keys[0];
    found[at + 1] = ids[0];
    found[at + 2] = broken[0];
  }
}`,
};

/** `size`: invocations that share a row, which has to be read many times over. Chosen tokens go from `first` on. */
export const choose = (size: number): Kernel => ({
  name: `choose by ${size}`,
  params: ['choices', 'vocab', 'first'],
  buffers: ['data: array<u32>', 'logits: array<f32>', 'found: array<u32>', 'write chosen: array<u32>'],
  size,
  body: /* wgsl */ `
${keyOf}
var<workgroup> sums: array<f32, ${size}>;
/** Tokens up to one in the order: those of a larger key, and those of its key up to its id. */
struct Cut { key: u32, id: u32 }
struct Setting { row: u32, most: f32, floor: f32, temperature: f32 }

fn within(cut: Cut, key: u32, id: u32) -> bool { return key > cut.key || (key == cut.key && id <= cut.id); }
fn weight(s: Setting, x: f32) -> f32 { return select(0.0, exp((x - s.most) / s.temperature), x >= s.floor); }

fn total(lane: u32, x: f32) -> f32 {
  workgroupBarrier();
  sums[lane] = x;
  for (var n = ${size / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) { sums[lane] += sums[lane + n]; }
  }
  return workgroupUniformLoad(&sums[0]);
}
/** Of tokens within both cuts: their number, or their weights. */
fn mass(lane: u32, s: Setting, kept: Cut, cut: Cut, counted: bool) -> f32 {
  var sum = 0.0;
  for (var i = lane; i < p.vocab; i += ${size}) {
    let x = logits[s.row + i];
    let key = key_of(x);
    if (within(kept, key, i) && within(cut, key, i)) { sum += select(weight(s, x), 1.0, counted); }
  }
  return total(lane, sum);
}

/** The first token at which the sum reaches the mark, or passes it. */
fn search(lane: u32, s: Setting, kept: Cut, mark: f32, counted: bool, pass_it: bool) -> Cut {
  var low = 0u;
  var high = key_of(s.most);
  while (low < high) {
    let middle = low + (high - low) / 2 + 1;
    let sum = mass(lane, s, kept, Cut(middle, p.vocab), counted);
    if (sum > mark || (sum == mark && !pass_it)) { low = middle; } else { high = middle - 1; }
  }
  let key = low;
  low = 0;
  high = p.vocab - 1;
  while (low < high) {
    let middle = (low + high) / 2;
    let sum = mass(lane, s, kept, Cut(key, middle), counted);
    if (sum > mark || (sum == mark && !pass_it)) { high = middle; } else { low = middle + 1; }
  }
  return Cut(key, low);
}

/** The same in the order of ids. */
fn search_ids(lane: u32, s: Setting, mark: f32) -> u32 {
  var low = 0u;
  var high = p.vocab - 1;
  while (low < high) {
    let middle = (low + high) / 2;
    var sum = 0.0;
    for (var i = lane; i <= middle; i += ${size}) { sum += weight(s, logits[s.row + i]); }
    if (total(lane, sum) > mark) { high = middle; } else { low = middle + 1; }
  }
  return low;
}

fn main(group: vec3u, lane: u32) {
  let at = p.choices + ${CHOICE} * group.x;
  let row = data[at] * p.vocab;
  let temperature = bitcast<f32>(data[at + 1]);
  let top_k = data[at + 2];
  let top_p = bitcast<f32>(data[at + 3]);
  let min_p = bitcast<f32>(data[at + 4]);
  let random = bitcast<f32>(data[at + 5]);
  var top = 0u;
  var greedy = p.vocab;
  var bad = 0u;
  for (var n = 0u; n < ${SURVEYS}; n++) {
    let word = (group.x * ${SURVEYS} + n) * ${SURVEY};
    if (found[word] > top || (found[word] == top && found[word + 1] < greedy)) { top = found[word]; greedy = found[word + 1]; }
    bad |= found[word + 2];
  }
  if (bad == 1 || top <= key_of(-3.4e38)) {
    if (lane == 0) { chosen[p.first + group.x] = ${NONE}u; }
    return;
  }
  if (temperature == 0 || top_k == 1) {
    if (lane == 0) { chosen[p.first + group.x] = greedy; }
    return;
  }
  let most = logits[row + greedy];
  let s = Setting(row, most, select(-3.4e38, most + temperature * log(min_p), min_p > 0), temperature);
  let all = Cut(0, p.vocab);
  if (top_k == 0 && top_p == 1) {
    let id = search_ids(lane, s, random * mass(lane, s, all, all, false));
    if (lane == 0) { chosen[p.first + group.x] = id; }
    return;
  }
  var kept = all;
  if (top_k > 0 && top_k < p.vocab) { kept = search(lane, s, all, f32(top_k), true, false); }
  if (top_p < 1) { kept = search(lane, s, kept, top_p * mass(lane, s, kept, all, false), false, false); }
  let cut = search(lane, s, kept, random * mass(lane, s, kept, all, false), false, true);
  if (lane == 0) { chosen[p.first + group.x] = cut.id; }
}`,
});
