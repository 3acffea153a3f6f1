/** Synthetic request traces of several kinds, deterministic. */
import type { TraceRequest } from '../src/eval/trace/replay.ts';
import { createRandom } from './random.ts';
