/** What a family of codecs brings to the zoo: its part of the spec grammar, and a constructor. */
import type { Codec, Shape, Side } from './codec.ts';
import type { Learned, Samples } from './learned.ts';

export interface Variant {
  /** As written behind a dash; `#` stands for a number: `nc`, `seed#`. */
  name: string;
  about: string;
  /** Means something for one side only; a spec that serves both sides leaves it out of the other. */
  side?: Side;
}

export interface Family {
  title: string;
  /** Base names, the first group of a full match. */
  pattern: RegExp;
  /** Base names to list and to suggest. */
  bases: string[];
  variants: Variant[];
  /** Variants that exclude each other. */
  conflicts?: [string, string][];
  create(request: Request): Codec;
  /** What `create` needs of data, from samples; absent where nothing does. */
  learn?(request: LearnRequest): Learned;
  /** Stands in for `learn` where only sizes matter: arrays of the right lengths, without training; `learn` unless given. */
  placeholder?(request: Omit<Request, 'learned'>): Learned;
  /** All its specs learn the same: once is enough. */
  learnsAlike?: boolean;
  /** Whether it learns with these variants; it does unless this says otherwise. */
  learns?(variants: readonly string[]): boolean;
}

export interface LearnRequest extends Omit<Request, 'learned'> {
  samples: Samples;
}

export interface Request {
  /** Canonical spec of this side. */
  spec: string;
  /** Groups of the pattern's match on the base name. */
  match: RegExpMatchArray;
  side: Side;
  shape: Shape;
  learned: Learned;
  has(variant: string): boolean;
  /** The number of a `#` variant, or its default. */
  number(variant: string, otherwise: number): number;
}

export const SEED: Variant = { name: 'seed#', about: 'seed of the random signs (0)' };
