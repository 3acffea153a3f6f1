/**
 * How the 32 lanes of a workgroup pass numbers to one another: by subgroup operations where a subgroup is all of them,
 * else through workgroup memory, with the same bits. All lanes call these together.
 */

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
fn largest(x: vec4f) -> vec4f { return bitcast<vec4f>(in_order(subgroupMax(in_order(bitcast<vec4i>(x))))); }`;

/**
 *   across(x, by)   what lane ^ by has
 *   largest(x)      of all lanes
 *   all_of(x)       the sum of all lanes', which is the same in each of them
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
${together ? largestOfIntegers : overLanes('largest', 'max(all, across(all, by))')}
${overLanes('all_of', 'all + across(all, by)')}`;
}
