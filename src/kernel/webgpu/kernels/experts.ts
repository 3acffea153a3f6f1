/** Mixtures of experts: choosing experts, grouping rows by expert, products with their weights, and the sum of outputs. */
import { MIN_SCORE_SUM, type RoutingRule } from '../../device.ts';
import { f32, type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ROW_TILE } from '../weights.ts';
import {
  accumulateSplits,
  addSplits,
  type GemvOptions,
  gemvName,
  type MatmulVariant,
  matmulBindings,
  productText,
  SPLIT_K,
  splitStart,
  splitsPerPass,
  variantName,
} from './gemv.ts';
import { each } from './snippets.ts';

const SIZE = 64;

/** In a work item: no expert, no choice. */
const NONE = '0xffffffffu';

/** Max experts of a model: their counts are in workgroup memory. */
export const MAX_EXPERTS = 1024;

export interface RouteVariant extends Pick<RoutingRule, 'scores' | 'normalized' | 'groups'> {
  biased: boolean;
}

export const routeName = ({ scores, normalized, groups, biased }: RouteVariant): string =>
  `route ${scores}${normalized ? ' normalized' : ''}${biased ? ' biased' : ''}${groups ? ' groups' : ''}`;

/**
 * One workgroup per row. Each round finds the next expert in the order of descending logits and, for equal ones, ascending
 * ids; or of scores, if these have biases or the experts are in groups.
 */
export function route(variant: RouteVariant): Kernel {
  const { scores, normalized, biased, groups } = variant;
  const isRanked = biased || groups !== undefined;
  const isSoftmax = scores === 'softmax';
  const isSummed = isSoftmax && (isRanked || !normalized);
  const rank = (e: string) => (isRanked ? `ranks[${e}]` : `logits[row * p.count + ${e}]`);
  const unscaled = (logit: string) => (isSoftmax ? `exp(${logit} - max_logit)` : `1 / (1 + exp(-${logit}))`);
  return {
    name: routeName(variant),
    summary: 'Chooses the experts of a row, and their weights.',
    params: [...u32('rows', 'count', 'used', 'groups', 'usedGroups'), ...f32('scale')],
    buffers: [
      readBuffer('logits', 'f32'),
      ...(biased ? [readBuffer('biases', 'f32')] : []),
      writeBuffer('experts', 'f32'),
      writeBuffer('weights', 'f32'),
    ],
    size: SIZE,
    body: /* wgsl */ `
struct Candidate { rank: f32, id: u32 }
var<workgroup> candidates: array<Candidate, ${SIZE}>;
var<workgroup> lane_values: array<f32, ${SIZE}>;
${isRanked ? `var<workgroup> ranks: array<f32, ${MAX_EXPERTS}>;` : ''}
${groups ? `var<workgroup> group_sums: array<f32, ${MAX_EXPERTS / 2}>;` : ''}
fn is_before(a: Candidate, b: Candidate) -> bool { return a.rank > b.rank || (a.rank == b.rank && a.id < b.id); }
fn main(group: vec3u, lane: u32) {
  let row = group.y * 65535 + group.x;
  if (row >= p.rows) { return; }
  var total = 1.0;
  ${!isSoftmax ? '' : reduceLanes('max_logit', 'logits[row * p.count]', 'max(max_logit, logits[row * p.count + e])', 'max(max_logit, lane_values[n])')}
  ${!isSummed ? '' : reduceLanes('sum', '0.0', 'sum + exp(logits[row * p.count + e] - max_logit)', 'sum + lane_values[n]')}
  ${isSummed ? 'total = sum;' : ''}
  ${
    isRanked
      ? `for (var e = lane; e < p.count; e += ${SIZE}) {
    ranks[e] = (${unscaled('logits[row * p.count + e]')}) / total${biased ? ' + biases[e]' : ''};
  }
  workgroupBarrier();`
      : ''
  }
  ${groups ? DROP_GROUPS : ''}
  var last = Candidate();
  var chosen = 0.0;
  for (var i = 0u; i < p.used; i++) {
    var best = Candidate(0.0, ${NONE});
    for (var e = lane; e < p.count; e += ${SIZE}) {
      let one = Candidate(${rank('e')}, e);
      if ((i == 0 || is_before(last, one)) && (best.id == ${NONE} || is_before(one, best))) { best = one; }
    }
    candidates[lane] = best;
    for (var half = ${SIZE / 2}u; half > 0; half /= 2) {
      workgroupBarrier();
      if (lane < half) {
        let other = candidates[lane + half];
        if (candidates[lane].id == ${NONE} || (other.id != ${NONE} && is_before(other, candidates[lane]))) {
          candidates[lane] = other;
        }
      }
    }
    workgroupBarrier();
    last = candidates[0];
    workgroupBarrier();
    let expert = min(last.id, p.count - 1);
    let weight = ${unscaled('logits[row * p.count + expert]')};
    chosen += weight;
    if (lane == 0) {
      experts[row * p.used + i] = f32(expert);
      weights[row * p.used + i] = weight;
    }
  }
  let divisor = ${normalized ? `max(${MIN_SCORE_SUM}, chosen)` : 'total'};
  if (lane == 0) {
    for (var i = 0u; i < p.used; i++) { weights[row * p.used + i] = p.scale * weights[row * p.used + i] / divisor; }
  }
}`,
  };
}

/** Declares `name`, a reduction over the experts: first of each lane, then of all lanes, in the same order. */
const reduceLanes = (name: string, initial: string, perExpert: string, perLane: string): string => `
  var ${name} = ${initial};
  for (var e = lane; e < p.count; e += ${SIZE}) { ${name} = ${perExpert}; }
  lane_values[lane] = ${name};
  workgroupBarrier();
  ${name} = ${initial};
  for (var n = 0u; n < ${SIZE}; n++) { ${name} = ${perLane}; }
  workgroupBarrier();`;

/** Experts outside the best groups get the lowest rank. A group's sum is that of its two best ranks. */
const DROP_GROUPS = /* wgsl */ `
  let group_size = p.count / p.groups;
  for (var g = lane; g < p.groups; g += ${SIZE}) {
    var best = max(ranks[g * group_size], ranks[g * group_size + 1]);
    var second = min(ranks[g * group_size], ranks[g * group_size + 1]);
    for (var e = g * group_size + 2; e < (g + 1) * group_size; e++) {
      second = max(second, min(best, ranks[e]));
      best = max(best, ranks[e]);
    }
    group_sums[g] = best + second;
  }
  workgroupBarrier();
  for (var e = lane; e < p.groups * group_size; e += ${SIZE}) {
    let own = e / group_size;
    var better = 0u;
    for (var g = 0u; g < p.groups; g++) {
      better += select(0u, 1u, group_sums[g] > group_sums[own] || (group_sums[g] == group_sums[own] && g < own));
    }
    if (better >= p.usedGroups) { ranks[e] = -3.0e38; }
  }
  workgroupBarrier();`;

const GROUP_SIZE = 256;

/**
 * Work items of `rows` choices with the same expert: the expert, then the choices (row x experts per row + index). One
 * workgroup; a lane scans all choices for its experts, so that the order does not depend on timing.
 */
export const groupByExpert = (rows: number): Kernel => ({
  name: `group by expert ${rows}`,
  summary: 'Groups the rows of a batch by expert.',
  params: u32('count', 'choices', 'items'),
  buffers: [readBuffer('experts', 'f32'), writeBuffer('items', 'u32')],
  size: GROUP_SIZE,
  body: /* wgsl */ `
var<workgroup> item_counts: array<u32, ${MAX_EXPERTS}>;
fn main(group: vec3u, lane: u32) {
  for (var e = lane; e < p.count; e += ${GROUP_SIZE}) {
    var choices = 0u;
    for (var c = 0u; c < p.choices; c++) { choices += select(0u, 1u, u32(experts[c]) == e); }
    item_counts[e] = (choices + ${rows - 1}) / ${rows};
  }
  for (var word = lane; word < p.items * ${rows + 1}; word += ${GROUP_SIZE}) { items[word] = ${NONE}; }
  workgroupBarrier();
  storageBarrier();
  for (var e = lane; e < p.count; e += ${GROUP_SIZE}) {
    var item = 0u;
    for (var before = 0u; before < e; before++) { item += item_counts[before]; }
    var choices = 0u;
    for (var c = 0u; c < p.choices; c++) {
      if (u32(experts[c]) != e) { continue; }
      let at = (item + choices / ${rows}) * ${rows + 1};
      items[at] = e;
      items[at + 1 + choices % ${rows}] = c;
      choices++;
    }
  }
}`,
});

/**
 * GEMV with the weights of a row's experts. A workgroup computes a row tile of one expert's outputs, for one choice or for
 * the choices of a work item. The arithmetic of a row is that of `gemv`.
 */
export function expertGemv(m: MatmulVariant, options: GemvOptions): Kernel {
  const { rows } = options;
  const size = splitsPerPass(options) * ROW_TILE;
  const { buffers } = matmulBindings(m);
  return {
    name: `expert gemv ${variantName(m)} ${gemvName(options)}`,
    summary: "GEMV: the weights of a row's experts times the row.",
    params: u32('blocks', 'outCols', 'firstTile', 'tiles', 'items', 'choicesPerInput'),
    buffers: [rows === 1 ? readBuffer('experts', 'f32') : readBuffer('items', 'u32'), ...buffers],
    size,
    body: /* wgsl */ `
${productText(m)}
${splitStart}
var<workgroup> sums: array<f32, ${SPLIT_K * rows * ROW_TILE}>;
fn main(group: vec3u, lane: u32) {
  let item = group.z * 65535 + group.y;
  if (item >= p.items) { return; }
  ${
    rows === 1
      ? 'let expert = u32(experts[item]); let choice0 = item;'
      : `let expert = items[item * ${rows + 1}];
  if (expert == ${NONE}) { return; }
  ${each(rows, i => `let choice${i} = items[item * ${rows + 1} + ${i + 1}];`)}`
  }
  // Weights may be in several pieces: this one has the expert's tile, or not.
  let first_out = group.x * ${ROW_TILE};
  let weight_tile = (expert * p.outCols + first_out) / ${ROW_TILE} - p.firstTile;
  if (weight_tile >= p.tiles) { return; }
  ${accumulateSplits(
    options,
    'weight_tile',
    [''],
    i => `(${i === 0 ? 'choice0' : `select(choice${i}, choice0, choice${i} == ${NONE})`}) / p.choicesPerInput`,
  )}
  workgroupBarrier();
  for (var at = lane; at < ${rows * ROW_TILE}; at += ${size}) {
    ${rows === 1 ? 'let choice = item;' : `let choice = items[item * ${rows + 1} + 1 + at / ${ROW_TILE}];`}
    let o = first_out + at % ${ROW_TILE};
    if (choice != ${NONE}) { out[choice * p.outCols + o] = add_sums(at)${m.bias ? ' + bias[expert * p.outCols + o]' : ''}; }
  }
}
${addSplits(rows, 'sums')}`,
  };
}

/** out += the outputs of a row's experts times their weights. */
export const addExperts: Kernel = {
  name: 'add experts',
  summary: "Adds the outputs of a row's experts, times their weights.",
  params: u32('rows', 'cols', 'used'),
  buffers: [readBuffer('outputs', 'f32'), readBuffer('weights', 'f32'), writeBuffer('out', 'f32')],
  size: 256,
  body: /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let i = group.x * 256 + lane;
  let row = group.z * 65535 + group.y;
  if (i >= p.cols || row >= p.rows) { return; }
  var sum = out[row * p.cols + i];
  for (var n = row * p.used; n < (row + 1) * p.used; n++) { sum = fma(weights[n], outputs[n * p.cols + i], sum); }
  out[row * p.cols + i] = sum;
}`,
};
