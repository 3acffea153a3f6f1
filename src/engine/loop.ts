/** Notices that an answer repeats itself: its newest tokens are the same run of tokens three times. */

/** A shorter run is counted as often as it takes to have this many tokens: a few words may well come three times. */
const MIN_RUN = 20;
const MAX_RUN = 256;
const TIMES = 3;

/** A function that takes the tokens of an answer one by one, and says whether they are in a loop. */
export function createLoopDetector(): (id: number) => boolean {
  const ids: number[] = [];
  /** For each length of a run: how many of the newest tokens are the same as the token one run before. */
  const same = new Uint32Array(MAX_RUN + 1);
  return id => {
    ids.push(id);
    let isLoop = false;
    for (let run = 1; run <= MAX_RUN && run < ids.length; run++) {
      same[run] = ids[ids.length - 1 - run] === id ? same[run]! + 1 : 0;
      isLoop ||= same[run]! >= TIMES * Math.max(MIN_RUN, run) - run;
    }
    return isLoop;
  };
}
