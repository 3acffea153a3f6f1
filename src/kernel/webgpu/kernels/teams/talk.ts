/**
 * A workgroup is four teams of 32 lanes. Lanes of a team pass numbers to one another: by subgroup operations where a
 * subgroup is a team, else through workgroup memory, with the same bits. All teams call these together.
 */
import { LANES, overLanes } from '../lanes/talk.ts';

export const TEAMS = 4;
/** Lanes of all teams. */
export const SIZE = TEAMS * LANES;

/**
 *   across(x, by)        what lane ^ by has
 *   largest(x)           of the team's lanes
 *   sum_of(x)            their sum, which is the same in each of them
 */
export function talk(together: boolean): string {
  const across = together
    ? `fn across(x: vec4f, by: u32) -> vec4f { return subgroupShuffleXor(x, by); }`
    : `var<workgroup> passed: array<vec4f, ${SIZE}>;
fn across(x: vec4f, by: u32) -> vec4f {
  workgroupBarrier();
  passed[${LANES} * team + lane] = x;
  workgroupBarrier();
  return passed[${LANES} * team + (lane ^ by)];
}`;
  return `var<private> lane: u32;
var<private> team: u32;
${across}
${overLanes('largest', 'max(all, across(all, by))')}
${overLanes('sum_of', 'all + across(all, by)')}`;
}
