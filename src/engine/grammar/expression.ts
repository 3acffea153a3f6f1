/** Grammars as data: expressions over text, and rules that may refer to each other. */

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

/** Whether some finite text matches: a type that always contains itself has none. */
export function isSatisfiable({ root, rules }: Grammar): boolean {
  const known = new Set<string>();
  const check = (expression: Expression, seen: Map<Expression, boolean>): boolean => {
    const before = seen.get(expression);
    if (before !== undefined) return before;
    const found = checkParts(expression, seen);
    seen.set(expression, found);
    return found;
  };
  const checkParts = (expression: Expression, seen: Map<Expression, boolean>): boolean => {
    switch (expression.kind) {
      case 'texts':
        return expression.texts.length > 0;
      case 'character':
        return expression.ranges.length > 0;
      case 'sequence':
        return expression.items.every(item => check(item, seen));
      case 'choice':
        return expression.items.some(item => check(item, seen));
      case 'repeat':
        return expression.min === 0 || check(expression.item, seen);
      case 'rule':
        return known.has(expression.name);
      default:
        return true;
    }
  };
  for (let before = -1; before !== known.size; ) {
    before = known.size;
    const seen = new Map<Expression, boolean>();
    for (const [name, body] of rules) if (check(body, seen)) known.add(name);
  }
  return check(root, new Map());
}
