/**
 * How much larger the error of sealed pages is than that of the calibration text. Each side of each layer counts by its
 * share of the predicted divergence, so the ratio estimates how much larger the divergence is, too.
 */
import type { PageErrorRow } from '../cache/page-errors.ts';
import type { KvCodec } from '../codec/kv.ts';
import { skippedTokens } from '../kernel/visibility.ts';
import { canAllocateMead, divergencePerLoss } from './allocate.ts';
import { SINKS } from './attention-sensitivity.ts';
import type { Profile } from './profile.ts';

/** The error of some sealed pages. */
export interface ErrorRatio {
  /** Number of pages. */
  pages: number;
  /** Their error relative to the calibration text: 1 on text like it. */
  ratio: number;
}

/**
 * [layer][side]: multiplied by the squared errors of a token, they sum to 1 on average over the calibration text. Undefined
 * if no codec knows its error there. Sides without sensitivities all count the same: their errors have different units.
 */
export function errorWeights(codecs: readonly KvCodec[], profile?: Profile): Float64Array | undefined {
  const sides = codecs.flatMap(({ keys, values }, layer) => [
    { layer, side: 'key' as const, kind: keys.layout.encoding.kind, error: keys.expectedError ?? 0 },
    { layer, side: 'value' as const, kind: values.layout.encoding.kind, error: values.expectedError ?? 0 },
  ]);
  const isMead = sides.every(({ kind, error }) => kind === 'additive' || error === 0);
  const weights = sides.map(({ error, ...layerSide }) => {
    if (error <= 0) return 0;
    return isMead && canAllocateMead(profile) ? divergencePerLoss(profile, layerSide, false) : 1 / error;
  });
  const expected = sides.reduce((sum, { error }, i) => sum + weights[i] * error, 0);
  return expected > 0 ? Float64Array.from(weights, weight => weight / expected) : undefined;
}

/** The part of a plan that says how to weigh the errors of pages. */
interface WeighedPages {
  errorWeights?: Float64Array;
  pageTokens: number;
  window: { sink: number };
}

/** Undefined if the plan has no weights, or there is no page to compare. */
export function errorRatio(
  { errorWeights, pageTokens, window }: WeighedPages,
  errors: ReadonlyMap<number, PageErrorRow>,
): ErrorRatio | undefined {
  if (!errorWeights) return undefined;
  let [pages, tokens, sum] = [0, 0, 0];
  for (const [page, row] of errors) {
    const sinks = skippedTokens(page * pageTokens, page + 1, { pageTokens, sinks: window.sink });
    // The first tokens of a text are unlike all others, and calibration does not sample them.
    if (sinks >= pageTokens || (page === 0 && sinks < SINKS)) continue;
    row.forEach((error, i) => {
      sum += errorWeights[i] * error;
    });
    tokens += pageTokens - sinks;
    pages++;
  }
  return pages > 0 ? { pages, ratio: sum / tokens } : undefined;
}
