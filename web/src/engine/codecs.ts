/** Codecs that the app offers, and what each costs: measured numbers, of Mimir and of another small model. */

export interface CodecChoice {
  spec: string;
  /** Per value, of heads with 64 dims. */
  bits: number;
  /** Percent of 2,000 facts that Mimir recalls from documents of 6,000 tokens (models/MIMIR.md). */
  recall: number;
  /** Percent of tokens whose most likely next token is that of f16, of SmolLM2-135M (docs/quality.md). */
  agreement: number;
  /** Whether it needs the model's profile; Mimir's comes with the app. */
  isCalibrated?: boolean;
}

export const CODECS: readonly CodecChoice[] = [
  { spec: 'f16', bits: 16, recall: 99.95, agreement: 100 },
  { spec: 'tq4', bits: 4.25, recall: 99.9, agreement: 95.7 },
  { spec: 'tq3', bits: 3.25, recall: 99.7, agreement: 90.9 },
  { spec: 'tq2', bits: 2.25, recall: 98.35, agreement: 80.3 },
  { spec: 'mead2', bits: 2, recall: 99.85, agreement: 93.8, isCalibrated: true },
];

/** Those that a model can use: without a profile only those that need none. */
export const codecsFor = (hasProfile: boolean): readonly CodecChoice[] =>
  CODECS.filter(({ isCalibrated }) => hasProfile || !isCalibrated);
