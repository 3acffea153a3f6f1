/** What docs/quality.md compares: sections, each a table of plans. */
import { usesProfile } from '../../src/codec/kv.ts';
import { DEFAULT_WINDOW, parseSpec } from '../../src/codec/spec.ts';
import { zoo } from '../../src/codec/zoo.ts';
import { DEFAULT_PROFILE, type PlanKey } from './results.ts';

export type Part = 'tables' | 'ablations';

export interface Entry {
  /** One cell per label column. */
  labels: string[];
  plan: PlanKey;
}

export interface Section {
  part: Part;
  title: string;
  /** A paragraph of Markdown. */
  about: string;
  /** Headers of the label columns. */
  labels: string[];
  /** The last label is a column of the table, and the text is a label instead: for long lists of equal bits. */
  pivot?: boolean;
  /** Means are shown with their intervals. */
  intervals?: boolean;
  entries: Entry[];
  /** Names of the texts; columns of the table. */
  texts: string[];
  /** Rows per text. */
  rows: number;
}

export interface SuiteOptions {
  /** Names, in the order of the columns. */
  texts: readonly string[];
  rows: number;
  headDim: number;
  /** Codecs of the tables. */
  codecs: readonly string[];
  /** Names of profiles that were each learned on one kind of text. */
  transfer: readonly string[];
}

export const PAGE_TOKENS = 128;
/** A recent window of R tokens keeps R to R + page - 1 tokens in f16, so short pages show the effect of R itself. */
const SHORT_PAGE_TOKENS = 32;
const [ABLATION_TEXTS, ABLATION_ROWS] = [2, 2];

export const ALL_CODECS: readonly string[] = [...zoo, 'mead1', 'mead4'].filter(spec => spec !== 'f16');
/** One or two of each family: the windows matter to all codecs in a similar way. */
const WINDOW_CODECS = [
  ...['q8_0', 'q4_0', 'q4_0h', 'tq4', 'tq35', 'tq2', 'kivi2g32', 'oscar2g32'],
  ...['oaken', 'vec-d4b8', 'million-d4b8', 'tri12i4/tq4', 'mead3', 'mead2'],
];

export function createSuite(options: SuiteOptions): Section[] {
  return [...windowTables(options), ...ablations(options)];
}

/** The plan of a spec with the default profile, if it uses one. */
export const planKey = (kv: string, pageTokens = PAGE_TOKENS): PlanKey => ({
  kv,
  pageTokens,
  profile: usesProfile(parseSpec(kv)) ? DEFAULT_PROFILE : '',
});

/** The codecs of the first table. */
export const defaultTable = (sections: readonly Section[]): Section => sections[0];

function windowTables({ codecs, texts, rows }: SuiteOptions): Section[] {
  const windowCodecs = codecs.filter(spec => WINDOW_CODECS.includes(spec));
  const table = (title: string, about: string, window: string, specs: readonly string[]): Section => ({
    part: 'tables',
    title,
    about,
    labels: ['codec'],
    entries: specs.map(spec => ({ labels: [`\`${spec}\``], plan: planKey(spec + window) })),
    texts: [...texts],
    rows,
  });
  return [
    {
      ...table(
        'Default window',
        `The first ${DEFAULT_WINDOW.sink} tokens (sinks) and the unsealed page, up to ${PAGE_TOKENS - 1} tokens, are f16.`,
        '',
        codecs,
      ),
      intervals: true,
    },
    table(
      'With 128 recent tokens in f16',
      'The published setting of KIVI, OScaR and VecInfer (`+recent128`), for everybody.',
      '+recent128',
      windowCodecs,
    ),
    table('Without f16 sinks', 'Only the unsealed page is f16 (`+sink0`).', '+sink0', windowCodecs),
  ];
}

function ablations({ texts, rows, headDim, transfer }: SuiteOptions): Section[] {
  const few = {
    part: 'ablations' as const,
    texts: texts.slice(0, ABLATION_TEXTS),
    rows: Math.min(rows, ABLATION_ROWS),
  };
  return [
    {
      ...few,
      title: 'Group size',
      about:
        'Tokens (keys) or dims (values) that share a range. Groups of values are at most as long as a head has dims ' +
        `(${headDim}).`,
      labels: ['codec', 'group'],
      entries: ['kivi2', 'oscar2'].flatMap(base =>
        [16, 32, 64, 128].map(size => {
          const kv = size > headDim ? `${base}g${size}/${base}g${headDim}` : `${base}g${size}`;
          return { labels: [`\`${kv}\``, String(size)], plan: planKey(kv) };
        }),
      ),
    },
    {
      ...few,
      title: 'Bits of keys and values',
      about: 'The same mean of bits buys more in keys or in values, depending on the codec.',
      labels: ['keys', 'values'],
      entries: [...bitPairs([4, 3, 2], bits => `tq${bits}`), ...bitPairs([4, 2], bits => `kivi${bits}g32`)],
    },
    {
      ...few,
      title: "TurboQuant's bits and QJL",
      about:
        'One codebook for all dims, or half of them with one bit more (tq35, tq25); the last bit of these is the sign of ' +
        "the residual's projection (QJL), or is left out.",
      labels: ['codec', 'QJL'],
      entries: [
        ...['tq4', 'tq3', 'tq2', 'tq1'].map(kv => [kv, '']),
        ...['tq35', 'tq25'].flatMap(kv => [
          [kv, 'yes'],
          [`${kv}-noqjl`, ''],
        ]),
      ].map(([kv, qjl]) => ({ labels: [`\`${kv}\``, qjl], plan: planKey(kv) })),
    },
    {
      ...few,
      title: "TriAttention's pairs",
      about:
        `Kept RoPE pairs of a key, of ${headDim / 2}. Values are f16. tri-i4: as many per layer as carry 95 % of the ` +
        'energy.',
      labels: ['keys', 'pairs'],
      entries: [
        ...[8, 12, 16, 24, 32, 48].filter(pairs => pairs <= headDim / 2).map(pairs => [`tri${pairs}i4`, String(pairs)]),
        ['tri-i4', 'by layer'],
      ].map(([keys, pairs]) => ({ labels: [`\`${keys}\``, pairs], plan: planKey(`${keys}/f16`) })),
    },
    {
      ...few,
      title: 'Codebook size',
      about: 'VecInfer: dims per sub-vector (`d`) and bits per sub-vector (`b`); `-own`: one codebook per sub-vector.',
      labels: ['codec'],
      entries: [
        ...['vec-d2b8', 'vec-d4b12', 'vec-d2b4', 'vec-d4b8', 'vec-d4b8-own', 'vec-d8b12', 'vec-d8b12/vec-d8b8'],
        ...['vec-d8b8', 'million-d4b8', 'million-d4b8-own'],
      ].map(kv => ({ labels: [`\`${kv}\``], plan: planKey(kv) })),
    },
    {
      ...few,
      title: "VecInfer's transforms",
      about:
        'What is done to keys before the codebook: nothing, a scale per channel (smoothing), a Hadamard rotation, or both.',
      labels: ['keys', 'smoothing', 'Hadamard'],
      entries: [
        ['million-d4b8/vec-d4b8', '', ''],
        ['vec-d4b8-smooth/vec-d4b8', 'yes', ''],
        ['vec-d4b8-had/vec-d4b8', '', 'yes'],
        ['vec-d4b8', 'yes', 'yes'],
      ].map(([kv, smooth, hadamard]) => ({ labels: [`\`${kv.split('/')[0]}\``, smooth, hadamard], plan: planKey(kv) })),
    },
    {
      ...few,
      title: 'Tokens per page',
      about:
        'A page has means, ranges and norms of its own, and is sealed as a whole: the newest tokens of a text are f16. ' +
        'Columns: tokens per page.',
      labels: ['codec', 'page'],
      pivot: true,
      entries: ['tq4', 'tq2', 'kivi2g32', 'oscar2g32'].flatMap(kv =>
        [32, 64, 128].map(page => ({ labels: [`\`${kv}\``, String(page)], plan: planKey(kv, page) })),
      ),
    },
    {
      ...few,
      title: 'Recent window',
      about:
        `Recent tokens in f16, with pages of ${SHORT_PAGE_TOKENS} and of ${PAGE_TOKENS} tokens. A page is sealed as a ` +
        'whole, so that R to R + page - 1 recent tokens are f16. Columns: R.',
      pivot: true,
      labels: ['codec', 'page', 'R'],
      entries: ['tq2', 'kivi2g32', 'oscar2g32', 'vec-d4b8', 'mead2'].flatMap(spec =>
        [SHORT_PAGE_TOKENS, PAGE_TOKENS].flatMap(page =>
          [0, 32, 64, 128, 256].map(recent => ({
            labels: [`\`${spec}\``, String(page), String(recent)],
            plan: planKey(recent > 0 ? `${spec}+recent${recent}` : spec, page),
          })),
        ),
      ),
    },
    {
      ...few,
      title: "OScaR's two parts",
      about:
        'Rotation and token scaling, alone and together, with f16 sinks and without. [Token norms](#token-norms) ' +
        'show what scaling does for sinks that are coded.',
      labels: ['codec', 'rotation', 'scaling', 'sinks'],
      entries: [DEFAULT_WINDOW.sink, 0].flatMap(sinks =>
        [
          ['kivi2g32', '', ''],
          ['oscar2g32-scale', '', 'yes'],
          ['oscar2g32-rot', 'yes', ''],
          ['oscar2g32', 'yes', 'yes'],
        ].map(([spec, rotation, scaling]) => ({
          labels: [`\`${spec}\``, rotation, scaling, String(sinks)],
          plan: planKey(sinks === DEFAULT_WINDOW.sink ? spec : `${spec}+sink${sinks}`),
        })),
      ),
    },
    {
      ...few,
      texts: [...texts],
      title: 'Transfer between kinds of text',
      about:
        "Oaken's thresholds, VecInfer's codebooks and mead, each learned on one kind of text and measured on all " +
        'kinds. `default` is the profile of the other tables.',
      labels: ['codec', 'learned on'],
      entries:
        transfer.length === 0
          ? []
          : ['oaken', 'vec-d4b8', 'mead2'].flatMap(kv =>
              [DEFAULT_PROFILE, ...transfer].map(profile => ({
                labels: [`\`${kv}\``, profile],
                plan: { ...planKey(kv), profile },
              })),
            ),
    },
  ];
}

function bitPairs(bits: readonly number[], spec: (bits: number) => string): Entry[] {
  return bits.flatMap(key =>
    bits.map(value => ({
      labels: [`\`${spec(key)}\``, `\`${spec(value)}\``],
      plan: planKey(key === value ? spec(key) : `${spec(key)}/${spec(value)}`),
    })),
  );
}
