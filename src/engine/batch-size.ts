/** Rows per forward pass: as many as the scratch holds, fewer if one operation would block the event loop for too long. */

import type { Device } from '../kernel/device.ts';
import { optionError } from '../util/errors.ts';

export interface BatchSize {
  readonly rows: number;
  /** Adjusts `rows` after a pass of that many rows in which the event loop was blocked for up to `longestWait` ms. */
  adapt(rows: number, longestWait: number): void;
}

/** The event loop should not be blocked for longer, in ms. */
const MAX_WAIT = 50;
/** Passes are sized for this, so that noise stays below the maximum; below it, twice the rows stay within the maximum. */
const TARGET_WAIT = MAX_WAIT / 2;
const MIN_ROWS = 4;
/** The first pass: the speed of this model on this machine is not known yet. */
const FIRST_ROWS = 32;

/** The js device gets small passes, so that an abort signal is seen soon; a GPU is fastest with large ones. */
export function maxBatchRows(prefillChunk: number | undefined, { name }: Device): number {
  const rows = prefillChunk ?? (name === 'js' ? 32 : name === 'webgpu' ? 512 : 256);
  if (!Number.isInteger(rows) || rows < 1 || rows > 65536)
    throw optionError('prefillChunk', `must be an integer from 1 to 65536; got ${rows}.`);
  return rows;
}

export function createBatchSize(max: number, { name }: Device): BatchSize {
  // A GPU does not block the main thread; only compiling does, once.
  const adapts = name !== 'webgpu';
  let rows = adapts ? Math.min(max, FIRST_ROWS) : max;
  return {
    get rows() {
      return rows;
    },
    adapt(done, longestWait) {
      if (!adapts || done < rows) return;
      if (longestWait > MAX_WAIT)
        rows = Math.min(rows, Math.max(MIN_ROWS, Math.floor((done * TARGET_WAIT) / longestWait)));
      else if (longestWait < TARGET_WAIT) rows = Math.min(max, 2 * rows);
    },
  };
}
