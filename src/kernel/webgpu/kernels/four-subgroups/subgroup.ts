/** A workgroup of four subgroups of 32 lanes, with the functions of ../one-subgroup/subgroup.ts in each. */
import * as lanes from '../one-subgroup/subgroup.ts';

export const SUBGROUPS = 4;
/** Invocations per workgroup. */
export const WORKGROUP_SIZE = SUBGROUPS * lanes.LANES;

export const subgroupFunctions = (hasSubgroups: boolean): string => `var<private> lane: u32;
var<private> subgroup: u32;
${lanes.subgroupFunctions(hasSubgroups, SUBGROUPS)}`;
