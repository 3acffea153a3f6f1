/** How right an answer is, 0 to 1: the metrics of question answering, summaries, classification and code. */
import { isSameMath } from './math-answer.ts';

/** Compares an answer with one that is right. `classes`: all that a classification may choose from. */
export type Metric = (said: string, answer: string, classes: readonly string[]) => number;

const CJK = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;

/** Lower case, without punctuation and the articles of English, with single spaces. */
const normalizeText = (text: string): string =>
  text
    .toLowerCase()
    .replace(/[\p{P}\p{S}]/gu, '')
    .replace(/\b(a|an|the)\b/g, ' ')
    .replace(/\s+/g, ' ')
    .trim();

/** Words; characters of scripts that are written without spaces. */
const words = (text: string): string[] =>
  text
    .split(/\s+/)
    .flatMap(word => (CJK.test(word) ? [...word] : [word]))
    .filter(Boolean);

const harmonicMean = (shared: number, a: number, b: number): number => (a + b === 0 ? 0 : (2 * shared) / (a + b));

function countShared(a: readonly string[], b: readonly string[]): number {
  const left = new Map<string, number>();
  for (const word of b) left.set(word, (left.get(word) ?? 0) + 1);
  return a.filter(word => {
    const count = left.get(word) ?? 0;
    left.set(word, count - 1);
    return count > 0;
  }).length;
}

/** Length of the longest common subsequence. */
export function commonSubsequence(a: readonly string[], b: readonly string[]): number {
  let previous = new Uint32Array(b.length + 1);
  for (const item of a) previous = nextRow(previous, item, b);
  return previous[b.length];
}

function nextRow(previous: Uint32Array, item: string, b: readonly string[]) {
  const row = new Uint32Array(b.length + 1);
  for (let j = 0; j < b.length; j++) row[j + 1] = item === b[j] ? previous[j] + 1 : Math.max(previous[j + 1], row[j]);
  return row;
}

/** A longest common subsequence. Of several, the one that the package `rouge` finds. */
function commonWords(a: readonly string[], b: readonly string[]): string[] {
  const rows = [new Uint32Array(b.length + 1)];
  for (const word of a) rows.push(nextRow(rows[rows.length - 1], word, b));
  const found: string[] = [];
  for (let [i, j] = [a.length, b.length]; i > 0 && j > 0; ) {
    if (a[i - 1] === b[j - 1]) {
      found.push(a[--i]);
      j--;
    } else if (rows[i - 1][j] > rows[i][j - 1]) i--;
    else j--;
  }
  return found;
}

/** Numbers in a text, without separators of thousands. */
export const numbersIn = (text: string): number[] =>
  (text.replace(/(?<=\d),(?=\d{3}(?!\d))/g, '').match(/(?<![\w.])-?\d+(?:\.\d+)?/g) ?? []).map(Number);

/** The share of the numbers in an answer that are the right one. */
function numberShare(said: string, answer: string): number {
  const [right] = numbersIn(answer);
  const found = numbersIn(said);
  return found.length === 0 ? 0 : found.filter(number => number === right).length / found.length;
}

/** Classes that the answer names; a part of the right one's name does not count against it. */
function classification(said: string, answer: string, classes: readonly string[]): number {
  const named = classes.filter(name => said.includes(name) && (name === answer || !answer.includes(name)));
  return named.includes(answer) ? 1 / named.length : 0;
}

const f1: Metric = (said, answer) => {
  const [a, b] = [said, answer].map(text => words(normalizeText(text)));
  return harmonicMean(countShared(a, b), a.length, b.length);
};

/** Sentences end in a period, as in the package `rouge` that LongBench uses; white space alone has an empty word. */
const sentencesOf = (text: string): string[][] =>
  text
    .split('.')
    .filter(Boolean)
    .map(sentence => (sentence.trim() ? words(sentence) : ['']));

/** Different words in the longest common subsequences of all pairs of sentences, over different words of both texts. */
const rougeL: Metric = (said, answer) => {
  const [a, b] = [said, answer].map(sentencesOf);
  const shared = new Set(b.flatMap(right => a.flatMap(sentence => commonWords(right, sentence))));
  return harmonicMean(shared.size, new Set(a.flat()).size, new Set(b.flat()).size);
};

const editSimilarity: Metric = (said, answer) => {
  const [a, b] = [[...said], [...answer]];
  return a.length + b.length === 0 ? 1 : harmonicMean(commonSubsequence(a, b), a.length, b.length);
};

const metrics = {
  /** The same text after normalizing. */
  exact: (said, answer) => (normalizeText(said) === normalizeText(answer) ? 1 : 0),
  /** The answer is in the text, as whole words. */
  contains: (said, answer) => (` ${normalizeText(said)} `.includes(` ${normalizeText(answer)} `) ? 1 : 0),
  /** The last number of the text. */
  number: (said, answer) => (numbersIn(said).at(-1) === numbersIn(answer).at(-1) ? 1 : 0),
  /** The same expression, as text or as a number. */
  math: (said, answer) => (isSameMath(said, answer) ? 1 : 0),
  /** F1 of the words. */
  f1,
  /** F1 of the different words in the longest common subsequences of sentences. */
  'rouge-l': rougeL,
  /** Characters of the longest common subsequence, twice, over the characters of both. */
  edit: editSimilarity,
  classification,
  /** The share of the numbers in the text that are the right one. */
  count: numberShare,
  /** As `count`: the number of a paragraph. */
  retrieval: numberShare,
} satisfies Record<string, Metric>;

export type MetricName = keyof typeof metrics;

export const metricNames = Object.keys(metrics) as MetricName[];

/** The best score over all answers that are right. */
export const bestScore = (
  metric: MetricName,
  said: string,
  answers: readonly string[],
  classes: readonly string[] = [],
): number => Math.max(0, ...answers.map(answer => metrics[metric](said, answer, classes)));
