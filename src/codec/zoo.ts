/** All codec families, and the specs that tables list. */

import { floats } from './baseline/floats.ts';
import { llamaBlocks } from './baseline/llama-blocks.ts';
import type { Family } from './family.ts';
import { hybrid } from './hybrid/hybrid.ts';
import { kivi } from './kivi/kivi.ts';
import { mead } from './mead/mead.ts';
import { oaken } from './oaken/oaken.ts';
import { oscar } from './oscar/oscar.ts';
import { tri } from './tri/tri.ts';
import { turbo } from './turbo/turbo.ts';
import { million, vec } from './vec/vec.ts';

export const families: readonly Family[] = [
  floats,
  llamaBlocks,
  turbo,
  hybrid,
  kivi,
  oscar,
  oaken,
  vec,
  million,
  tri,
  mead,
];

/** The rows of `kvasir codecs` and `kvasir estimate`: every codec, and the variants worth comparing. */
export const zoo: readonly string[] = [
  ...['f16', 'q8_0', 'q8_0h', 'fp8', 'oaken', 'kivi4g32', 'q4_0', 'q4_0-raw', 'q4_0h', 'q4_0h-raw'],
  ...['tq4', 'tq4-raw', 'tq4u', 'tq4/tq3', 'tq35', 'tq35-v', 'tq3', 'tq3-raw', 'tq3u'],
  ...['oscar2g32', 'oscar2g32-rot', 'oscar2g32-scale', 'kivi2g32', 'tq25', 'tq35-noqjl', 'tq2', 'tq2-raw', 'tq2u'],
  ...['mead3', 'mead2.5', 'mead2', 'mead2u', 'mead1.5', 'vec-d4b8', 'vec-d4b8-own', 'million-d4b8'],
  ...['tri16i8/tq4', 'tri-i4/tq4', 'tri12i4/tq4', 'tri8i4/tq2', 'tq1'],
];
