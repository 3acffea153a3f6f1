/**
 * Selects the attention kernels for a pair of codecs: four subgroups per workgroup, one subgroup, or 128 lanes that read
 * floats (the generic fallback). The first that supports both codecs and fits the adapter is used.
 */

import type { GpuCodec } from './codecs.ts';
import type { Kernel } from './kernel.ts';
import type { AttendShape } from './kernels/attend.ts';
import { promptKernels, promptRows } from './kernels/attend-prompt.ts';
import type { QueryWords } from './kernels/four-subgroups/attend.ts';
import { pageRelativeQueries } from './kernels/four-subgroups/page-relative.ts';
import { attendPagesFourSubgroups } from './kernels/four-subgroups/sources.ts';
import { SUBGROUPS } from './kernels/four-subgroups/subgroup.ts';
import { MAX_ROW_DIMS } from './kernels/one-subgroup/float-rows.ts';
import { attendF16OneSubgroup, attendPagesOneSubgroup } from './kernels/one-subgroup/sources.ts';
import { attendF16, attendPages } from './kernels/sources.ts';
import { firstFit, fits, type KernelLimits } from './limits.ts';

export interface VariantOptions {
  /** Half the queries that share unpacked values. */
  unroll: number;
  /** Pages per workgroup. */
  pagesPerSplit: number;
  /** Whether rows of prompts use subgroup matrices. */
  matrices: boolean;
  limits: KernelLimits;
}

/** How sealed pages are read. */
interface PageVariant {
  pagesPerSplit: number;
  /** Words per transformed query, and whether they are int8. */
  words: number;
  int8: boolean;
  pageQueries?: { words: QueryWords; kernel(): Kernel };
  pages(rows: number): Kernel;
  /** Leading parameters of the kernel: loop bounds that the compiler must not know, or it would unroll. */
  pageLoops: readonly number[];
  /** Workgroups per KV head, which divide its query heads. */
  pageParts: number;
  /** Limit of queries per workgroup, besides memory. */
  maxQueries?: number;
}

/** How the f16 tokens of tails and sinks are read. */
interface F16Variant {
  f16(rows: number): Kernel;
  f16Loops: readonly number[];
  f16Parts: number;
}

export interface AttentionVariant extends PageVariant, F16Variant {
  /** Rows per workgroup, for runs of several rows. */
  tile: number;
  /** The same for pages, and for single rows too. Default: `tile`. */
  pageTile?: number;
}

const SUBGROUP_LOOPS = [4];

function selectVariant(key: GpuCodec, value: GpuCodec, shape: AttendShape, options: VariantOptions): AttentionVariant {
  const { limits, unroll } = options;
  const pageVariant = firstFit(
    pageVariants(key, value, shape, options.pagesPerSplit),
    ({ pages, pageQueries }) => [pages(1), ...(pageQueries ? [pageQueries.kernel()] : [])],
    limits,
  );
  const f16Variant = firstFit(
    f16Variants(shape, pageVariant.pageLoops === SUBGROUP_LOOPS),
    ({ f16 }) => [f16(1)],
    limits,
  );
  const variant = { ...pageVariant, ...f16Variant };
  let tile = Math.max(1, Math.floor(Math.min(2 * unroll, variant.maxQueries ?? 2 * unroll) / shape.group));
  while (tile > 1 && !(fits(variant.pages(tile), limits) && fits(variant.f16(tile), limits))) tile--;
  return { ...variant, tile };
}

/** For decoded rows, and for rows of prompts. */
export interface Variants {
  decoded: AttentionVariant;
  prompt: AttentionVariant;
}

export function selectVariants(key: GpuCodec, value: GpuCodec, shape: AttendShape, options: VariantOptions): Variants {
  const decoded = selectVariant(key, value, shape, options);
  return { decoded, prompt: promptVariant(key, value, shape, options, decoded) };
}

/** Prompts use subgroup matrices where they fit. */
function promptVariant(
  key: GpuCodec,
  value: GpuCodec,
  shape: AttendShape,
  options: VariantOptions,
  decoded: AttentionVariant,
): AttentionVariant {
  const kernels = options.matrices ? promptKernels(key, value, shape) : [];
  const pages = kernels.find(make => fits(make(), options.limits));
  if (!pages) return decoded;
  const { tile, f16, f16Loops, f16Parts } = decoded;
  return {
    ...{ tile, f16, f16Loops, f16Parts },
    pagesPerSplit: options.pagesPerSplit,
    words: key.layout.codedDim,
    int8: false,
    pages,
    pageLoops: [],
    pageParts: 1,
    pageTile: tile * Math.floor(promptRows(shape) / tile),
  };
}

/** Fastest first; the last reads every codec. */
function pageVariants(key: GpuCodec, value: GpuCodec, shape: AttendShape, pagesPerSplit: number): PageVariant[] {
  const side = <Part>({ layout }: GpuCodec, part: Part) => ({ layout, stage: part });
  const variants: PageVariant[] = [];
  const { fourSubgroupKeys, oneSubgroupKeys } = key;
  const { fourSubgroupValues, oneSubgroupValues } = value;
  if (fourSubgroupKeys && fourSubgroupValues) {
    const { queryWords: words } = fourSubgroupKeys;
    variants.push({
      pagesPerSplit: SUBGROUPS,
      words: key.keys.queryWords,
      int8: false,
      pageQueries: { words, kernel: () => pageRelativeQueries(key.name, key.layout, words, shape, key.perHead) },
      pages: rows =>
        attendPagesFourSubgroups(side(key, fourSubgroupKeys), side(value, fourSubgroupValues), shape, rows),
      pageLoops: SUBGROUP_LOOPS,
      pageParts: 1,
    });
  }
  if (oneSubgroupKeys && oneSubgroupValues) {
    const maxQueries = Math.min(oneSubgroupKeys.maxQueries ?? Infinity, oneSubgroupValues.maxQueries ?? Infinity);
    if (maxQueries >= shape.group)
      variants.push({
        pagesPerSplit,
        words: oneSubgroupKeys.queryWords,
        int8: oneSubgroupKeys.int8 ?? false,
        pages: rows => attendPagesOneSubgroup(side(key, oneSubgroupKeys), side(value, oneSubgroupValues), shape, rows),
        pageLoops: SUBGROUP_LOOPS,
        pageParts: 1,
        maxQueries,
      });
  }
  for (const pageParts of divisorsOfGroup(shape))
    variants.push({
      pagesPerSplit,
      words: key.keys.queryWords,
      int8: false,
      pages: rows => attendPages(side(key, key.keys), side(value, value.values), shape, rows, pageParts),
      pageLoops: [],
      pageParts,
    });
  return variants;
}

/** Into how many workgroups the query heads of a KV head can be divided. */
const divisorsOfGroup = ({ group }: AttendShape): number[] =>
  Array.from({ length: group }, (_, i) => i + 1).filter(parts => group % parts === 0);

/** One subgroup where pages use it; otherwise (mostly precise mode) the generic kernel first. */
function f16Variants(shape: AttendShape, preferSubgroup: boolean): F16Variant[] {
  const generic = divisorsOfGroup(shape).map(f16Parts => ({
    f16: (rows: number) => attendF16(shape, rows, f16Parts),
    f16Loops: [],
    f16Parts,
  }));
  if (shape.headDim > MAX_ROW_DIMS) return generic;
  const oneSubgroup = {
    f16: (rows: number) => attendF16OneSubgroup(shape, rows),
    f16Loops: SUBGROUP_LOOPS,
    f16Parts: 1,
  };
  return preferSubgroup ? [oneSubgroup, ...generic] : [...generic, oneSubgroup];
}
