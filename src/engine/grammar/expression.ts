/** Grammars as data: expressions over text, and rules that may refer to each other. */
import type { Spend } from './work.ts';

/** Inclusive ranges of code points. */
export type Range = readonly [low: number, high: number];

export type Expression =
  | { readonly kind: 'text'; readonly text: string }
  /** One of these texts, which share what they begin with. */
  | { readonly kind: 'texts'; readonly texts: readonly string[] }
  /** One character. */
  | { readonly kind: 'character'; readonly ranges: readonly Range[] }
  /** A marker of the answer format, as text or as its control token: `<tool_call>`. */
  | { readonly kind: 'marker'; readonly text: string }
  /** Any text; after each marker in it, `after`, which ends the text if `once`. */
  | { readonly kind: 'freeText'; readonly marker: string; readonly after: Expression; readonly once: boolean }
  /** Any text up to a marker, which is included. */
  | { readonly kind: 'until'; readonly marker: string }
  | { readonly kind: 'sequence'; readonly items: readonly Expression[] }
  | { readonly kind: 'choice'; readonly items: readonly Expression[] }
  | { readonly kind: 'repeat'; readonly item: Expression; readonly min: number; readonly max: number }
  | { readonly kind: 'rule'; readonly name: string };

export interface Grammar {
  readonly root: Expression;
  readonly rules: ReadonlyMap<string, Expression>;
  /** Keywords of schemas that its texts need not satisfy, by their paths. */
  readonly unenforced?: readonly string[];
}

export const text = (value: string): Expression => ({ kind: 'text', text: value });
export const texts = (values: readonly string[]): Expression => ({ kind: 'texts', texts: values });
export const character = (...ranges: readonly Range[]): Expression => ({ kind: 'character', ranges });
export const marker = (value: string): Expression => ({ kind: 'marker', text: value });
export const sequence = (...items: readonly Expression[]): Expression => ({ kind: 'sequence', items });
export const choice = (...items: readonly Expression[]): Expression =>
  items.length === 1 ? items[0] : { kind: 'choice', items };
export const repeat = (item: Expression, min: number, max = Number.POSITIVE_INFINITY): Expression => ({
  kind: 'repeat',
  item,
  min,
  max,
});
export const optional = (item: Expression): Expression => repeat(item, 0, 1);
export const rule = (name: string): Expression => ({ kind: 'rule', name });

const MAX_CODE_POINT = 0x10ffff;

/** The code points that are in none of the ranges. */
export function complement(ranges: readonly Range[]): Range[] {
  const result: Range[] = [];
  let next = 0;
  for (const [low, high] of [...ranges].sort((a, b) => a[0] - b[0])) {
    if (low > next) result.push([next, low - 1]);
    next = Math.max(next, high + 1);
  }
  if (next <= MAX_CODE_POINT) result.push([next, MAX_CODE_POINT]);
  return result;
}

/** Whether an expression matches the empty text. Rules count as not empty: those of schemas never are. */
export function isNullable(expression: Expression): boolean {
  switch (expression.kind) {
    case 'text':
      return expression.text === '';
    case 'texts':
      return expression.texts.includes('');
    case 'freeText':
      return true;
    case 'sequence':
      return expression.items.every(isNullable);
    case 'choice':
      return expression.items.some(isNullable);
    case 'repeat':
      return expression.min === 0 || isNullable(expression.item);
    default:
      return false;
  }
}

/** Whether an expression of a pattern matches a whole text: all its readings are followed together. */
export function matchesText(expression: Expression, value: string, spend: Spend): boolean {
  /** Where the parts of the text end that begin at one of these places. */
  const ends = (part: Expression, starts: ReadonlySet<number>): Set<number> => {
    spend(2 * (1 + starts.size));
    switch (part.kind) {
      case 'text':
        return new Set([...starts].filter(at => value.startsWith(part.text, at)).map(at => at + part.text.length));
      case 'texts':
        return new Set(part.texts.flatMap(one => [...ends(text(one), starts)]));
      case 'character':
        return new Set([...starts].flatMap(at => characterEnd(part.ranges, at)));
      case 'sequence':
        return part.items.reduce((from, item) => (from.size > 0 ? ends(item, from) : from), new Set(starts));
      case 'choice':
        return new Set(part.items.flatMap(item => [...ends(item, starts)]));
      case 'repeat':
        return repeatEnds(part, starts);
      default:
        throw new Error(`kvasir bug: a pattern has no ${part.kind}`);
    }
  };

  const characterEnd = (ranges: readonly Range[], at: number): number[] => {
    const code = value.codePointAt(at);
    spend(ranges.length);
    const isIn = code !== undefined && ranges.some(([low, high]) => code >= low && code <= high);
    return isIn ? [at + (code > 0xffff ? 2 : 1)] : [];
  };

  const repeatEnds = ({ item, min, max }: Extract<Expression, { kind: 'repeat' }>, starts: ReadonlySet<number>) => {
    let last = new Set(starts);
    for (let i = 0; i < min && last.size > 0; i++) last = ends(item, last);
    const all = new Set(last);
    // What was reached before needs no second way: the first one took fewer repetitions.
    for (let i = min; i < max && last.size > 0; i++) {
      last = new Set([...ends(item, last)].filter(at => !all.has(at)));
      for (const at of last) all.add(at);
    }
    return all;
  };

  return ends(expression, new Set([0])).has(value.length);
}

/** Whether some finite text matches: a type that always contains itself has none. */
export function isSatisfiable({ root, rules }: Grammar, spend: Spend): boolean {
  /** Rules that are satisfiable, and parts that are: neither changes when more rules are. */
  const known = new Set<string>();
  const found = new Set<Expression>();
  const check = (expression: Expression, failed: Set<Expression>): boolean => {
    spend(1);
    if (found.has(expression)) return true;
    if (failed.has(expression)) return false;
    const result = checkParts(expression, failed);
    (result ? found : failed).add(expression);
    return result;
  };
  const checkParts = (expression: Expression, failed: Set<Expression>): boolean => {
    switch (expression.kind) {
      case 'texts':
        return expression.texts.length > 0;
      case 'character':
        return expression.ranges.length > 0;
      case 'sequence':
        return expression.items.every(item => check(item, failed));
      case 'choice':
        return expression.items.some(item => check(item, failed));
      case 'repeat':
        return expression.min === 0 || check(expression.item, failed);
      case 'rule':
        return known.has(expression.name);
      default:
        return true;
    }
  };
  for (let before = -1; before !== known.size; ) {
    before = known.size;
    const failed = new Set<Expression>();
    for (const [name, body] of rules) if (!known.has(name) && check(body, failed)) known.add(name);
  }
  return check(root, new Set());
}
