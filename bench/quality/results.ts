/** The raw numbers behind docs/quality.md: a JSON file beside it, written after every measurement. */
import { readFile } from 'node:fs/promises';
import { FormatError, InputError } from '../../src/errors.ts';
import { writeFileAtomic } from '../../src/plan/profile-store.ts';

/** What must be the same for all measurements on one page. */
export interface Setup {
  /** File name. */
  model: string;
  /** sha256 of the model's files. */
  fingerprint: string;
  device: string;
  layers: number;
  headDim: number;
  /** Tokens per row; the second half is scored. */
  context: number;
}

/** A text, by the name of its kind. */
export interface TextInfo {
  file: string;
  special: boolean;
  /** Rows skipped at its start. */
  skip: number;
  /** sha256 of its token ids. */
  hash: string;
}

export interface ProfileInfo {
  hash: string;
  /** Tokens it was learned from, and the names of their sources. */
  tokens: number;
  sources: readonly string[];
}

/** What is measured: a plan. */
export interface PlanKey {
  kv: string;
  pageTokens: number;
  /** Name of the profile; empty if the spec needs none. */
  profile: string;
}

/** One plan on one row of one text. */
export interface Measurement extends PlanKey {
  text: string;
  row: number;
  /** Code bits per value. */
  bits: number;
  /** KL divergence from f16, in nats per token. */
  kld: number;
  /** Fraction of tokens whose most likely next token is that of f16. */
  top1: number;
  perplexity: number;
}

/** Seconds to read a prompt, best of some rounds, with a codec and with f16 in turn. */
export interface PrefillTime {
  kv: string;
  tokens: number;
  seconds: number;
  f16Seconds: number;
}

/** What happens to the keys of the first tokens of a text in one layer. */
export interface LayerNorms {
  /** Norms of the first tokens, over the median norm of the later ones. */
  norms: number[];
  /** By transform of the keys before they are quantized to 2 bits per channel. */
  transforms: {
    name: string;
    /** The share of a channel's range that only the first tokens need, averaged. */
    share: number;
    /** |error| / |key|: the largest of the first tokens, and the median of the later ones. */
    firstError: number;
    laterError: number;
  }[];
}

/** One number for the keys and one for the values of a layer. */
export interface LayerPair {
  key: number;
  value: number;
}

export interface Results {
  setup: Setup;
  /** Codecs of the tables. */
  codecs: string[];
  texts: Record<string, TextInfo>;
  /** By name; `default` is the one that tables use. */
  profiles: Record<string, ProfileInfo>;
  /** Plans that cannot be created, by `planId`, and why. */
  refused: Record<string, string>;
  measurements: Measurement[];
  prefill: PrefillTime[];
  /** By the name of the text. */
  norms: Record<string, LayerNorms[]>;
  /** From the default profile: the part of the divergence that one side of a layer causes, by codec. */
  sensitivities: Record<string, readonly LayerPair[]>;
  /** Code bits of each layer, by spec, for plans that allocate them. */
  layerBits: Record<string, LayerPair[]>;
}

export const DEFAULT_PROFILE = 'default';

export const createResults = (setup: Setup): Results => ({
  setup,
  codecs: [],
  texts: {},
  profiles: {},
  refused: {},
  measurements: [],
  prefill: [],
  norms: {},
  sensitivities: {},
  layerBits: {},
});

export const planId = ({ kv, pageTokens, profile }: PlanKey): string => [kv, pageTokens, profile].join(' ');
const measurementId = (measurement: Measurement) => [measurement.text, measurement.row, planId(measurement)].join(' ');

/** Undefined if the file does not exist. */
export async function readResults(path: string): Promise<Results | undefined> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  try {
    const { setup, ...found }: Partial<Results> = JSON.parse(text);
    if (setup) return { ...createResults(setup), ...found };
  } catch {}
  throw new FormatError(`${path} does not hold results of this benchmark. Delete it, or use another --out.`);
}

/** One measurement per line, so that files can be compared. */
export async function writeResults(path: string, results: Results): Promise<void> {
  const lists = ['measurements', 'prefill'] as const;
  const fields = Object.entries(results).map(([name, value]) => {
    const isList = lists.some(list => list === name);
    const json = isList
      ? `[\n${(value as object[]).map(item => JSON.stringify(item)).join(',\n')}\n]`
      : JSON.stringify(value);
    return `${JSON.stringify(name)}: ${json}`;
  });
  await writeFileAtomic(path, new TextEncoder().encode(`{\n${fields.join(',\n')}\n}\n`));
}

/** Six digits are more than a measurement has. */
export const round = (value: number): number => Number(value.toPrecision(6));

/** Everything of `a` and `b`; both must be measured with the same model, device, texts and profiles. */
export function mergeResults(a: Results, b: Results): Results {
  checkSame('setup', { setup: a.setup }, { setup: b.setup });
  checkSame('text', a.texts, b.texts);
  checkSame('profile', a.profiles, b.profiles);
  const measurements = new Map([...a.measurements, ...b.measurements].map(one => [measurementId(one), one]));
  const prefill = new Map([...a.prefill, ...b.prefill].map(one => [one.kv, one]));
  return {
    setup: a.setup,
    codecs: [...new Set([...a.codecs, ...b.codecs])],
    texts: { ...a.texts, ...b.texts },
    profiles: { ...a.profiles, ...b.profiles },
    refused: { ...a.refused, ...b.refused },
    measurements: [...measurements.values()],
    prefill: [...prefill.values()],
    norms: { ...a.norms, ...b.norms },
    sensitivities: { ...a.sensitivities, ...b.sensitivities },
    layerBits: { ...a.layerBits, ...b.layerBits },
  };
}

/** Numbers of different texts, models or profiles must not end up in one table. */
function checkSame(what: string, a: object, b: object): void {
  const others = new Map(Object.entries(b));
  for (const [name, value] of Object.entries(a)) {
    const other = others.get(name);
    if (other === undefined || sameFields(value, other)) continue;
    throw new InputError(
      `The results have another ${what === name ? what : `${what} "${name}"`}: ${JSON.stringify(value)}, not ` +
        `${JSON.stringify(other)}. Use another --out, or delete the old results.`,
    );
  }
}

const sameFields = (a: object, b: object) =>
  JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort());

/** The measurements of a plan on a text, of rows below `rows`. */
export function findMeasurements(results: Results, plan: PlanKey, text: string, rows: number): Measurement[] {
  const { kv, pageTokens, profile } = plan;
  return results.measurements.filter(
    one =>
      one.kv === kv && one.text === text && one.row < rows && one.pageTokens === pageTokens && one.profile === profile,
  );
}

/** Number of rows that were measured on all texts, at least with f16. */
export function completeRows({ texts, measurements }: Results): number {
  const rowsOf = (text: string) => new Set(measurements.filter(one => one.text === text).map(({ row }) => row)).size;
  return Math.min(...Object.keys(texts).map(rowsOf));
}

/** Means over rows; perplexity is exp of the mean log. */
export function average(measurements: readonly Measurement[]) {
  const mean = (of: (one: Measurement) => number) =>
    measurements.reduce((sum, one) => sum + of(one), 0) / measurements.length;
  return {
    bits: mean(({ bits }) => bits),
    kld: mean(({ kld }) => kld),
    top1: mean(({ top1 }) => top1),
    perplexity: Math.exp(mean(({ perplexity }) => Math.log(perplexity))),
  };
}
