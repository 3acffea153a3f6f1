/**
 * The guard: notices that a codec does not suit a model, such as one whose key biases are far larger than what the keys
 * say. It compares attention on codes with attention on f16 (model/code-check.ts) and tells once if they differ by more
 * than the codec's own error explains.
 */
import type { KvCodec } from '../codec/kv.ts';
import { type CheckScratch, type CodeCheck, createCheckScratch } from '../model/code-check.ts';
import type { ModelConfig } from '../model/model-config.ts';
import type { Plan } from '../plan/plan.ts';
import { QualityError } from '../util/errors.ts';
import type { Engine } from './engine.ts';

/** What happens if a codec does not suit the model: a notice, or answers fail with a QualityError. */
export const qualityLossActions = ['notice', 'error'] as const;
export type QualityLossAction = (typeof qualityLossActions)[number];

/**
 * What the guard has measured. An error is 1 - the cosine similarity of a layer's attention output on codes and on f16: 0 if
 * they are the same, 1 if they are unrelated.
 */
export interface GuardStats {
  /** Pages that were checked. */
  pages: number;
  /** Mean of all layers. */
  meanError: number;
  /** The layer that is nearest to its limit or furthest beyond it, from 0; undefined before the first page. */
  layer?: number;
  /** Its error and its limit. */
  error: number;
  limit: number;
  /** Whether no layer has ever been beyond its limit. */
  ok: boolean;
}

/** A codec that does not suit the model: where that was noticed. */
export interface QualityLoss {
  /** The spec of the cache. */
  kv: string;
  /** From 0. */
  layer: number;
  /** 1 - the cosine similarity of its attention output on codes and on f16, and the limit of its codec. */
  error: number;
  limit: number;
}

export interface Guard {
  readonly check: CodeCheck;
  readonly stats: GuardStats;
  /** The loss, the first time that there is one to tell. */
  takeLoss(): QualityLoss | undefined;
  /** Throws if the codec does not suit the model, and answers shall fail then. */
  throwIfLost(): void;
  dispose(): void;
}

/** Bytes that the guard of a model takes on its device. */
export function guardBytes({ layers, heads, headDim }: ModelConfig, { leaf }: Plan): number {
  return leaf.bytes + (leaf.windowPage?.bytes ?? 0) + 4 * (2 * layers + 2) * heads * headDim;
}

/** The first pages are checked in all layers, later ones in one layer each. Cost: docs/lab/guard.md. */
const FULL_PAGES = 4;
/** A limit is this, and this many times the error budgets of keys and values. Measured: docs/lab/guard.md. */
const BASE_LIMIT = 0.12;
const BUDGET_FACTOR = 1.5;
/** Errors are moving means over about this many checks. */
const WINDOW = 32;

export function createGuard({ device, config }: Engine, plan: Plan, action: QualityLossAction): Guard {
  const scratch = createCheckScratch(device, config, plan.leaf);
  const limits = plan.codecs.map(limitOf);
  const errors = new Float64Array(config.layers);
  const checks = new Uint32Array(config.layers);
  let pages = 0;
  let loss: QualityLoss | undefined;
  let isTold = false;

  const stats = (): GuardStats => {
    const checked = [...checks.keys()].filter(layer => checks[layer] > 0);
    const excess = (layer: number) => errors[layer] / limits[layer];
    const layer = checked.length > 0 ? checked.reduce((a, b) => (excess(b) > excess(a) ? b : a)) : undefined;
    return {
      pages,
      meanError: checked.reduce((sum, one) => sum + errors[one], 0) / Math.max(1, checked.length),
      layer,
      error: errors[layer ?? 0],
      limit: limits[layer ?? 0],
      ok: loss === undefined,
    };
  };

  return {
    check: {
      scratch,
      recent: plan.window.recent,
      chooseLayers: () => (pages++ < FULL_PAGES ? [...errors.keys()] : [pages % config.layers]),
      onOutputs(layer, exact, coded) {
        checks[layer]++;
        errors[layer] += (cosineDistance(exact, coded) - errors[layer]) / Math.min(WINDOW, checks[layer]);
        // NaN is a loss, too.
        const [error, limit] = [errors[layer], limits[layer]];
        if (!(error <= limit)) loss ??= { kv: plan.spec, layer, error, limit };
      },
    },
    get stats() {
      return stats();
    },
    takeLoss() {
      if (isTold) return undefined;
      isTold = loss !== undefined;
      return loss;
    },
    throwIfLost() {
      if (loss && action === 'error') throw new QualityError(describeLoss(loss));
    },
    dispose() {
      for (const handle of Object.values<CheckScratch[keyof CheckScratch]>({ ...scratch }))
        if (handle) device.free(handle);
    },
  };
}

/** What the loss means, and what to do. */
export const describeLoss = ({ kv, layer, error, limit }: QualityLoss): string =>
  `${kv} does not suit this model: in layer ${layer}, attention on its codes differs from attention on f16 by ` +
  `${error.toFixed(2)} (0 is the same, 1 is unrelated), and the limit is ${limit.toFixed(2)}. Answers may be wrong or ` +
  "nonsense. Use --quality safe (quality: 'safe', which is kv q8_0) or kv f16, or calibrate the model: kvasir calibrate MODEL";

/** The largest error of a layer whose codec suits the model. */
const limitOf = ({ keys, values }: KvCodec): number => BASE_LIMIT + BUDGET_FACTOR * (keys.budget + values.budget);

/** 1 - the cosine similarity: unlike a squared error, it does not grow with layers whose outputs nearly cancel out. */
function cosineDistance(a: Float32Array, b: Float32Array): number {
  let [dot, aa, bb] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    aa += a[i] ** 2;
    bb += b[i] ** 2;
  }
  // Outputs of zeros are the same.
  return aa === 0 && bb === 0 ? 0 : 1 - dot / Math.sqrt(aa * bb);
}
