/**
 * How the 32 lanes of a workgroup pass numbers to one another: by subgroup operations where a subgroup is all of them,
 * else through workgroup memory, with the same bits. All lanes call these together.
 */

import { each } from '../text.ts';

/** Lanes of a workgroup. */
export const LANES = 32;

/** A function of a number of every lane that gives all of them the same: `next` is of what pairs of lanes have by then. */
const overLanes = (name: string, next: string): string => `fn ${name}(x: vec4f) -> vec4f {
  var all = x;
  for (var by = 1u; by < ${LANES}; by *= 2) { all = ${next}; }
  return all;
}`;

/** GPUs find the largest integer of a subgroup in one step, and floats are in the order of integers but for their sign. */
const largestOfIntegers = /* wgsl */ `
fn in_order(x: vec4i) -> vec4i { return x ^ ((x >> vec4u(31)) & vec4i(0x7fffffff)); }
fn largest(x: vec4f) -> vec4f { return bitcast<vec4f>(in_order(subgroupMax(in_order(bitcast<vec4i>(x))))); }
fn largest_one(x: f32) -> f32 { return bitcast<f32>(subgroupMax(bitcast<u32>(x))); }`;

/** By floats, which have whole numbers below 2^24. */
const aheadOf = /* wgsl */ `
fn ahead_of(x: u32) -> u32 {
  var all = f32(x);
  var ahead = 0.0;
  for (var by = 1u; by < ${LANES}; by *= 2) {
    let other = across(vec4f(all), by).x;
    ahead += select(0.0, other, (lane & by) != 0);
    all += other;
  }
  return u32(ahead);
}`;

/**
 *   across(x, by)   what lane ^ by has
 *   largest(x)      of all lanes
 *   largest_one(x)  of one number of each, none below 0
 *   all_of(x)       the sum of all lanes', which is the same in each of them
 *   ahead_of(x)     the sum of the lanes' before, below 2^24
 *
 * Of several teams of 32 lanes in a workgroup, of each for itself: `lane` is a lane's number in team `team`.
 */
export function talk(together: boolean, teams = 1): string {
  const first = teams > 1 ? `${LANES} * team + ` : '';
  const across = together
    ? 'fn across(x: vec4f, by: u32) -> vec4f { return subgroupShuffleXor(x, by); }'
    : `var<workgroup> passed: array<vec4f, ${teams * LANES}>;
fn across(x: vec4f, by: u32) -> vec4f {
  workgroupBarrier();
  passed[${first}lane] = x;
  workgroupBarrier();
  return passed[${first}(lane ^ by)];
}`;
  return `${across}
${
  together
    ? largestOfIntegers
    : `${overLanes('largest', 'max(all, across(all, by))')}
fn largest_one(x: f32) -> f32 { return largest(vec4f(x)).x; }`
}
${overLanes('all_of', 'all + across(all, by)')}
${together ? 'fn ahead_of(x: u32) -> u32 { return subgroupExclusiveAdd(x); }' : aheadOf}`;
}

/**
 * Lanes cut into runs of neighbours, a power of two of them, where each run needs a number of its own. `ofRun` is that of
 * `names` which is a lane's, if all lanes know all; of sums over all lanes, of which each lane has a part, `dealt` makes
 * `own` the sum of a lane's run over the lanes with the same place in their runs, and `overRun` sums it over a run.
 * Runs are told apart by the bits of `lane`: where its quotient was compared, the compiler of an H200 chose wrongly.
 */
export function ofRun(names: readonly string[], by = LANES / 2): string {
  if (names.length === 1) return names[0];
  const half = names.length / 2;
  return `select(${ofRun(names.slice(0, half), by / 2)}, ${ofRun(names.slice(half), by / 2)}, (lane & ${by}) != 0)`;
}

export function dealt(names: readonly string[], own: string): string {
  let text = '';
  let all = names;
  for (let by = LANES / 2; all.length > 1; by /= 2) {
    const [half, list] = [all.length / 2, all];
    const pick = (i: number, j: number) => `select(${list[i]}, ${list[j]}, (lane & ${by}) != 0)`;
    all = Array.from({ length: half }, (_, i) => `${own}_${by}_${i}`);
    text += each(half, i => `let ${all[i]} = ${pick(i, i + half)} + across(${pick(i + half, i)}, ${by});\n`, '');
  }
  return `${text}var ${own} = ${all[0]};`;
}

export const overRun = (name: string, runs: number): string =>
  each(Math.log2(LANES / runs), i => `${name} += across(${name}, ${2 ** i});`, ' ');
