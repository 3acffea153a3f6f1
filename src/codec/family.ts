/** A codec family: its part of the spec grammar, and a constructor. */
import type { Codec, Shape, Side } from './codec.ts';
import type { Learned, Samples } from './learned.ts';

export interface Variant {
  /** As written after a dash; `#` stands for a number: `nc`, `seed#`. */
  name: string;
  about: string;
  /** Set if it applies to one side only; a spec for both sides ignores it on the other. */
  side?: Side;
}

export interface Family {
  title: string;
  /** Matches all base names. */
  pattern: RegExp;
  /** Base names to list and to suggest in error messages. */
  bases: string[];
  variants: Variant[];
  /** Pairs of mutually exclusive variants. */
  conflicts?: [string, string][];
  create(request: CodecRequest): Codec;
  /** Trains the arrays that `create` needs; absent if it needs none. */
  learn?(request: LearnRequest): Learned;
  /** Untrained arrays of the right lengths, for callers that need only sizes. Default: `learn` on Gaussian samples. */
  placeholderLearned?(request: SideRequest): Learned;
  /** Samples of a layer that `learn` should have: fewer make the codec worse. Default: any number. */
  recommendedSamples?(request: SideRequest): number;
  /** All specs of the family share the learned arrays. */
  sharesLearned?: boolean;
  /** Whether `create` needs learned arrays; `optional` if it has defaults without them. Default: true. */
  needsLearned?(variants: readonly string[], base: string): boolean | 'optional';
}

export interface LearnRequest extends SideRequest {
  samples: Samples;
}

export interface CodecRequest extends SideRequest {
  learned: Learned;
}

/** One side of a spec, and what it is for. */
export interface SideRequest {
  /** Canonical spec of this side. */
  spec: string;
  /** The pattern's match on the base name. */
  match: RegExpMatchArray;
  side: Side;
  shape: Shape;
  has(variant: string): boolean;
  /** The number of a `#` variant. */
  numberOf(variant: string, defaultValue: number): number;
}

export const SEED: Variant = { name: 'seed#', about: 'seed of the random signs (0)' };
