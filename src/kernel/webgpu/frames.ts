/**
 * Which frame reads a pair of codecs: by teams of lanes, by lanes, or by all 128 lanes of a workgroup, whichever has parts
 * for both sides, in this order; and how many rows share one of its workgroups.
 */
import { UnsupportedError } from '../../errors.ts';
import type { GpuCodec } from './codecs.ts';
import type { Kernel } from './gpu.ts';
import type { AttendShape } from './kernels/attend.ts';
import { MOST_DIMS } from './kernels/lanes/rows.ts';
import { halvesByLanes, pagesByLanes, ROUND } from './kernels/lanes/sources.ts';
import { LANES } from './kernels/lanes/talk.ts';
import { attendHalves, attendPages, HALF_TOKENS } from './kernels/sources.ts';
import { teamWords, type Words } from './kernels/teams/attend.ts';
import { pagesByTeams } from './kernels/teams/sources.ts';
import { TEAMS } from './kernels/teams/talk.ts';

export interface FrameOptions {
  /** Half the queries that share what is unpacked. */
  unroll: number;
  /** Pages that a workgroup takes. */
  split: number;
  /** Bytes that it has. */
  memory: number;
}

export interface Frame {
  /** Rows that share a workgroup, where there are several. */
  tile: number;
  split: number;
  /** How queries are prepared: words of each, and whether they are int8; or turned for every page. */
  words: number;
  int8: boolean;
  turned?: Words;
  /** Kernels of sealed pages, and of the f16 tokens of tails and sinks. */
  pages(rows: number): Kernel;
  halves(rows: number): Kernel;
  /** Parameters of theirs: what loops by lanes count to. */
  pageLoops: readonly number[];
  halfLoops: readonly number[];
}

const BY_LANES = [4];
/** No more of them share a workgroup. */
const MOST_QUERIES = 64;

export function frameOf(key: GpuCodec, value: GpuCodec, shape: AttendShape, options: FrameOptions): Frame {
  const teams = teamsOf(key, value);
  const lanes = teams ? undefined : lanesOf(key, value);
  const halfLanes = (teams ?? lanes) !== undefined && shape.headDim <= MOST_DIMS;
  const most = mostQueries(key, value, shape, options.memory, halfLanes);
  if (most < shape.group)
    throw new UnsupportedError(
      `${shape.group} query heads a KV head of ${value.fragment.codedDim} coded dims exceed the GPU's workgroup memory. Use another codec, or device: 'wasm'.`,
    );
  const side = <Part>({ fragment }: GpuCodec, part: Part) => ({ fragment, part });
  return {
    tile: Math.max(1, Math.floor(Math.min(2 * options.unroll, most) / shape.group)),
    split: teams ? TEAMS : options.split,
    words: (lanes ?? key).keys.words,
    int8: lanes?.keys.int8 ?? false,
    turned: teams?.keys.turned,
    pages(rows) {
      if (teams) return pagesByTeams(side(key, teams.keys), side(value, teams.values), shape, rows);
      if (lanes) return pagesByLanes(side(key, lanes.keys), side(value, lanes.values), shape, rows);
      return attendPages(side(key, key.keys), side(value, value.values), shape, rows);
    },
    halves: rows => (halfLanes ? halvesByLanes(shape, rows) : attendHalves(shape, rows)),
    pageLoops: teams || lanes ? BY_LANES : [],
    halfLoops: halfLanes ? BY_LANES : [],
  };
}

function teamsOf({ teamKeys: keys }: GpuCodec, { teamValues: values }: GpuCodec) {
  return keys && values ? { keys, values } : undefined;
}

function lanesOf({ laneKeys: keys }: GpuCodec, { laneValues: values }: GpuCodec) {
  return keys && values ? { keys, values } : undefined;
}

/** Queries for which workgroups of pages and of halves have the memory. */
function mostQueries(key: GpuCodec, value: GpuCodec, shape: AttendShape, bytes: number, halfLanes: boolean): number {
  const memory = bytes / 4;
  const { headDim, pageTokens } = shape;
  const halfWords = Math.max(ROUND, 4 * LANES * Math.ceil(headDim / ROUND));
  const byAll = () => {
    const { keys } = key;
    const { values } = value;
    const scratch = Math.max(keys.parts * Math.max(pageTokens, HALF_TOKENS), values.dim);
    const fixed = keys.fixed + values.fixed + 64;
    return Math.floor((memory - fixed) / (keys.loaded + values.loaded + scratch + 32 + 8));
  };
  const teams = teamsOf(key, value);
  if (teams) {
    // Numbers of four queries go together.
    let ofPages = 0;
    while (ofPages < MOST_QUERIES && teamWords(teams.keys, teams.values, ofPages + 4) <= memory) ofPages += 4;
    return Math.min(ofPages, halfLanes ? Math.floor((memory - 4 * LANES) / halfWords) : byAll());
  }
  const lanes = lanesOf(key, value);
  if (!lanes) return byAll();
  const { keys, values } = lanes;
  const fit = Math.floor((memory - 4 * LANES) / Math.max(keys.loaded + values.loaded, halfWords));
  return Math.min(fit, keys.most ?? fit, values.most ?? fit);
}
