/** Codecs that the app offers, and what each costs. */

export interface CodecChoice {
  spec: string;
  /** Per value, of heads with 64 dims. */
  bits: number;
  /** Facts that Mimir recalls from documents of 6,000 tokens, of 2,000 (models/MIMIR.md). */
  recalled: number;
  /** Whether it needs the model's profile; Mimir's comes with the app. */
  isCalibrated?: boolean;
}

export const ASKED = 2000;

export const CODECS: readonly CodecChoice[] = [
  { spec: 'f16', bits: 16, recalled: 1999 },
  { spec: 'tq4', bits: 4.25, recalled: 1998 },
  { spec: 'tq3', bits: 3.25, recalled: 1994 },
  { spec: 'tq2', bits: 2.25, recalled: 1967 },
  { spec: 'mead2', bits: 2, recalled: 1997, isCalibrated: true },
];
