/** A workgroup is four teams of 32 lanes, which talk among themselves as those of ../lanes/talk.ts do. */
import * as lanes from '../lanes/talk.ts';

export const TEAMS = 4;
/** Lanes of all teams. */
export const SIZE = TEAMS * lanes.LANES;

export const talk = (together: boolean): string => `var<private> lane: u32;
var<private> team: u32;
${lanes.talk(together, TEAMS)}`;
