/**
 * Which frame reads a pair of codecs: by teams of lanes, by lanes, or by all 128 lanes of a workgroup, whichever has parts
 * for both sides and fits the adapter, in this order; and how many rows share one of its workgroups.
 */
import type { GpuCodec } from './codecs.ts';
import type { Kernel } from './gpu.ts';
import type { AttendShape } from './kernels/attend.ts';
import { MOST_DIMS } from './kernels/lanes/rows.ts';
import { halvesByLanes, pagesByLanes } from './kernels/lanes/sources.ts';
import { attendHalves, attendPages } from './kernels/sources.ts';
import type { Words } from './kernels/teams/attend.ts';
import { pagesByTeams } from './kernels/teams/sources.ts';
import { TEAMS } from './kernels/teams/talk.ts';
import { turnPages } from './kernels/teams/turned.ts';
import { firstFit, fits, type KernelLimits } from './limits.ts';

export interface FrameOptions {
  /** Half the queries that share what is unpacked. */
  unroll: number;
  /** Pages that a workgroup takes. */
  split: number;
  /** What the adapter allows a kernel. */
  limits: KernelLimits;
}

/** How sealed pages are read. */
interface Pages {
  split: number;
  /** How queries are prepared: words of each, and whether they are int8; or turned for every page, by a kernel of its own. */
  words: number;
  int8: boolean;
  turned?: { words: Words; kernel(): Kernel };
  pages(rows: number): Kernel;
  /** Parameters of the kernel: what loops by lanes count to. */
  pageLoops: readonly number[];
  /** Workgroups that share the query heads of a KV head. */
  pageParts: number;
  /** Queries that may share a workgroup, if not as many as there is memory for. */
  maxQueries?: number;
}

/** How the f16 tokens of tails and sinks are read. */
interface Halves {
  halves(rows: number): Kernel;
  halfLoops: readonly number[];
  halfParts: number;
}

export interface Frame extends Pages, Halves {
  /** Rows that share a workgroup, where there are several. */
  tile: number;
}

const BY_LANES = [4];

export function frameOf(key: GpuCodec, value: GpuCodec, shape: AttendShape, options: FrameOptions): Frame {
  const { limits, unroll } = options;
  const fromPages = firstFit(
    pagesOf(key, value, shape, options.split),
    ({ pages, turned }) => [pages(1), ...(turned ? [turned.kernel()] : [])],
    limits,
  );
  const fromHalves = firstFit(halvesOf(shape, fromPages.pageLoops === BY_LANES), ({ halves }) => [halves(1)], limits);
  const frame = { ...fromPages, ...fromHalves };
  let tile = Math.max(1, Math.floor(Math.min(2 * unroll, frame.maxQueries ?? 2 * unroll) / shape.group));
  while (tile > 1 && !(fits(frame.pages(tile), limits) && fits(frame.halves(tile), limits))) tile--;
  return { ...frame, tile };
}

/** The fastest first; the last one reads every codec. */
function pagesOf(key: GpuCodec, value: GpuCodec, shape: AttendShape, split: number): Pages[] {
  const side = <Part>({ fragment }: GpuCodec, part: Part) => ({ fragment, part });
  const found: Pages[] = [];
  const { teamKeys, laneKeys } = key;
  const { teamValues, laneValues } = value;
  if (teamKeys && teamValues) {
    const { turned: words } = teamKeys;
    found.push({
      split: TEAMS,
      words: key.keys.words,
      int8: false,
      turned: { words, kernel: () => turnPages(key.name, key.fragment, words, shape, key.perHead) },
      pages: rows => pagesByTeams(side(key, teamKeys), side(value, teamValues), shape, rows),
      pageLoops: BY_LANES,
      pageParts: 1,
    });
  }
  if (laneKeys && laneValues) {
    const maxQueries = Math.min(laneKeys.most ?? Infinity, laneValues.most ?? Infinity);
    if (maxQueries >= shape.group)
      found.push({
        split,
        words: laneKeys.words,
        int8: laneKeys.int8 ?? false,
        pages: rows => pagesByLanes(side(key, laneKeys), side(value, laneValues), shape, rows),
        pageLoops: BY_LANES,
        pageParts: 1,
        maxQueries,
      });
  }
  for (const pageParts of partsOf(shape))
    found.push({
      split,
      words: key.keys.words,
      int8: false,
      pages: rows => attendPages(side(key, key.keys), side(value, value.values), shape, rows, pageParts),
      pageLoops: [],
      pageParts,
    });
  return found;
}

/** Into how many parts the query heads of a KV head can be cut. */
const partsOf = ({ group }: AttendShape): number[] =>
  Array.from({ length: group }, (_, i) => i + 1).filter(parts => group % parts === 0);

/** By lanes where pages are read so; else, in precise mode most often, by all lanes of a workgroup if these fit. */
function halvesOf(shape: AttendShape, lanesFirst: boolean): Halves[] {
  const byAll = partsOf(shape).map(halfParts => ({
    halves: (rows: number) => attendHalves(shape, rows, halfParts),
    halfLoops: [],
    halfParts,
  }));
  if (shape.headDim > MOST_DIMS) return byAll;
  const byLanes = { halves: (rows: number) => halvesByLanes(shape, rows), halfLoops: BY_LANES, halfParts: 1 };
  return lanesFirst ? [byLanes, ...byAll] : [...byAll, byLanes];
}
