/** How many rows go through the layers together: as many as the scratch holds, unless one operation over them takes long. */
import { InputError } from '../errors.ts';
import type { Device } from '../kernel/device.ts';

export interface PassRows {
  readonly rows: number;
  /** Learns from a pass of `rows` rows in which the event loop had to wait this long at most, in ms. */
  adapt(rows: number, longestWait: number): void;
}

/** The event loop shall not wait longer than this, in ms. */
const MAX_WAIT = 50;
/** What passes are cut to, so that noise does not reach the limit; below it twice the rows stay within the limit. */
const AIM = MAX_WAIT / 2;
const MIN_ROWS = 4;
/** Nobody knows yet how fast this model is here. */
const FIRST_ROWS = 32;

/** The slow device gets small passes, so that one does not keep a signal waiting for minutes; a GPU wants large ones. */
export function scratchRows(asked: number | undefined, { name }: Device): number {
  const rows = asked ?? (name === 'js' ? 32 : name === 'webgpu' ? 512 : 256);
  if (!Number.isInteger(rows) || rows < 1 || rows > 65536)
    throw new InputError(`prefillChunk must be a whole number from 1 to 65536, not ${rows}.`);
  return rows;
}

export function createPassRows(max: number, { name }: Device): PassRows {
  // A GPU works beside the main thread; what takes long there is compiling, once.
  const adapts = name !== 'webgpu';
  let rows = adapts ? Math.min(max, FIRST_ROWS) : max;
  return {
    get rows() {
      return rows;
    },
    adapt(done, longestWait) {
      if (!adapts || done < rows) return;
      if (longestWait > MAX_WAIT) rows = Math.min(rows, Math.max(MIN_ROWS, Math.floor((done * AIM) / longestWait)));
      else if (longestWait < AIM) rows = Math.min(max, 2 * rows);
    },
  };
}
