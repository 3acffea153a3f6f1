/**
 * Caches that the app offers, and what each costs: measured numbers, of Mimir and of another small model. Those of tq2 and q8_0
 * are from before their keys were centered: they are better now.
 */
import type { Preset } from 'kvasir';

export interface CacheChoice {
  /** A preset, or the spec of a codec. */
  name: string;
  /** Per value, of heads with 64 dims. */
  bits: number;
  /** Percent of 2,000 facts that Mimir recalls from documents of 6,000 tokens (models/MIMIR.md), if it was measured. */
  recall?: number;
  /** Percent of tokens whose most likely next token is that of f16, of SmolLM2-135M (docs/quality.md), likewise. */
  agreement?: number;
  /** Whether it needs the model's profile; Mimir's comes with the app. */
  isCalibrated?: boolean;
}

const CODECS: readonly CacheChoice[] = [
  { name: 'f16', bits: 16, recall: 99.95, agreement: 100 },
  { name: 'tq4', bits: 4.31, recall: 99.9, agreement: 97.2 },
  { name: 'tq3', bits: 3.31, recall: 99.7, agreement: 94.6 },
  { name: 'tq2', bits: 2.31, recall: 98.35, agreement: 80.3 },
  { name: 'mead2', bits: 2, recall: 99.85, agreement: 94.2, isCalibrated: true },
];

type PresetChoice = CacheChoice & { name: Preset };

/** q8_0, tq4 and tq3. */
const PRESETS: readonly PresetChoice[] = [
  { name: 'safe', bits: 8.56, agreement: 99.6 },
  { name: 'balanced', bits: 4.31, agreement: 97.2 },
  { name: 'small', bits: 3.31, agreement: 94.6 },
];

/** With a profile the last two are mead of 3 and 2 bits. */
const CALIBRATED_PRESETS: readonly PresetChoice[] = [
  { name: 'safe', bits: 8.56, agreement: 99.6 },
  { name: 'balanced', bits: 3 },
  { name: 'small', bits: 2, recall: 99.85 },
];

export const DEFAULT_CACHE: Preset = 'balanced';

export const isPreset = (name: string): name is Preset => PRESETS.some(preset => preset.name === name);

/** The codecs that a model can use: without a profile only those that need none. */
export const codecsFor = (hasProfile: boolean): readonly CacheChoice[] =>
  CODECS.filter(({ isCalibrated }) => hasProfile || !isCalibrated);

/** The presets, then the codecs. */
export const cachesFor = (hasProfile: boolean): readonly CacheChoice[] => [
  ...(hasProfile ? CALIBRATED_PRESETS : PRESETS),
  ...codecsFor(hasProfile),
];
