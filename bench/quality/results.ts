/** The raw numbers behind docs/quality.md: a JSON file beside it, written after every measurement. */
import { readFile } from 'node:fs/promises';
import { writeFileAtomic } from '../../src/plan/profile-store.ts';
import { FormatError } from '../../src/util/errors.ts';

/** What must be the same for all measurements of a model. */
export interface Setup {
  /** File name; no two models on a page have the same. */
  model: string;
  /** sha256 of the model's files. */
  fingerprint: string;
  parameters: number;
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

/** Of one model; a file holds a list of these. */
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

/** Without `.gguf`. */
export const modelName = ({ setup }: Results): string => setup.model.replace(/\.gguf$/, '');

/** Undefined if the file does not exist. */
export async function readResults(path: string): Promise<Results[] | undefined> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  try {
    const models: Results[] = JSON.parse(text);
    if (models.every(({ setup }) => setup.parameters > 0))
      return models.map(found => ({ ...createResults(found.setup), ...found }));
  } catch {}
  throw new FormatError(`${path} does not hold results of this benchmark. Delete it, or use another --out.`);
}

/** One measurement per line, so that files can be compared. */
export async function writeResults(path: string, models: readonly Results[]): Promise<void> {
  const lists = ['measurements', 'prefill'];
  const json = models.map(results => {
    const fields = Object.entries(results).map(([name, value]) => {
      const items = () => (value as object[]).map(item => JSON.stringify(item)).join(',\n');
      return `${JSON.stringify(name)}: ${lists.includes(name) ? `[\n${items()}\n]` : JSON.stringify(value)}`;
    });
    return `{\n${fields.join(',\n')}\n}`;
  });
  await writeFileAtomic(path, new TextEncoder().encode(`[${json.join(',\n')}]\n`));
}

/** Six digits are more than a measurement has. */
export const round = (value: number): number => Number(value.toPrecision(6));

/** The measurements of a plan on a text, of rows below `rows`, in their order. */
export function findMeasurements(results: Results, plan: PlanKey, text: string, rows: number): Measurement[] {
  const { kv, pageTokens, profile } = plan;
  return results.measurements
    .filter(
      one =>
        one.kv === kv &&
        one.text === text &&
        one.row < rows &&
        one.pageTokens === pageTokens &&
        one.profile === profile,
    )
    .sort((a, b) => a.row - b.row);
}

/** Without the texts that have no measurement: a run that was stopped early has none of its last texts. */
export function withMeasuredTexts(results: Results): Results {
  const measured = new Set(results.measurements.map(({ text }) => text));
  return {
    ...results,
    texts: Object.fromEntries(Object.entries(results.texts).filter(([text]) => measured.has(text))),
  };
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
