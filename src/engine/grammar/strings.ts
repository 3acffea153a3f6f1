/** Strings of a schema as expressions: their pattern, format and length. */
import { type Expression, repeat, sequence } from './expression.ts';
import { anyString, stringCharacter, stringOf, stringOfLength } from './json.ts';
import { formats, isFormat, PatternError, parsePattern, unknownFormat } from './pattern.ts';
import type { Schema } from './schema-parts.ts';
import type { Spend } from './work.ts';

/** Told of a keyword that is left out, and why. */
type OnUnenforced = (keyword: string, reason: string) => void;

/** `onUnenforced` may throw; otherwise the keyword is left out. Undefined: no string satisfies the schema. */
export function stringExpression(schema: Schema, onUnenforced: OnUnenforced, spend: Spend): Expression | undefined {
  const { minLength: min = 0, maxLength: max = Number.POSITIVE_INFINITY } = schema;
  if (min > max) return undefined;
  const isLimited = min > 0 || max < Number.POSITIVE_INFINITY;
  const content = patternContent(schema, onUnenforced, spend) ?? formatContent(schema, onUnenforced, spend);
  if (!content) return isLimited ? stringOfLength(min, max) : anyString;
  const limited = isLimited ? withLength(content, min, max) : content;
  if (!limited) {
    const keyword = schema.pattern === undefined ? 'format' : 'pattern';
    onUnenforced(`${keyword} next to minLength or maxLength`, 'is not enforced. Write lengths in a pattern.');
  }
  return stringOf(limited ?? content);
}

function patternContent({ pattern }: Schema, onUnenforced: OnUnenforced, spend: Spend): Expression | undefined {
  if (pattern === undefined) return undefined;
  try {
    return parsePattern(pattern, spend);
  } catch (error) {
    if (!(error instanceof PatternError)) throw error;
    onUnenforced('pattern', `is not enforced: it has ${error.message}.`);
    return undefined;
  }
}

/** Beside a pattern that is enforced, a format only describes. */
function formatContent({ format }: Schema, onUnenforced: OnUnenforced, spend: Spend): Expression | undefined {
  if (format === undefined) return undefined;
  if (isFormat(format)) return parsePattern(formats[format], spend);
  onUnenforced('format', unknownFormat(format));
  return undefined;
}

interface Lengths {
  min: number;
  max: number;
}

/** The texts of a pattern that have a length; undefined if that is not one repetition more or less. */
function withLength(content: Expression, min: number, max: number): Expression | undefined {
  const all = lengthsOf(content);
  if (all.min >= min && all.max <= max) return content;
  const items = content.kind === 'sequence' ? content.items : [content];
  const isFree = (item: Expression) => lengthsOf(item).min !== lengthsOf(item).max;
  const at = items.findIndex(isFree);
  const free = items[at];
  if (free?.kind !== 'repeat' || items.findLastIndex(isFree) !== at) return undefined;
  const { min: least, max: most } = lengthsOf(free.item);
  if (least !== 1 || most !== 1) return undefined;
  const others = items.reduce((sum, item, i) => sum + (i === at ? 0 : lengthsOf(item).min), 0);
  const [from, to] = [Math.max(free.min, min - others), Math.min(free.max, max - others)];
  return from > to ? undefined : sequence(...items.slice(0, at), repeat(free.item, from, to), ...items.slice(at + 1));
}

/** Characters of the texts of a pattern, in which every `text` is one character, as an escape. */
function lengthsOf(expression: Expression): Lengths {
  if (expression === stringCharacter) return { min: 1, max: 1 };
  switch (expression.kind) {
    case 'sequence': {
      const items = expression.items.map(lengthsOf);
      return { min: sum(items.map(({ min }) => min)), max: sum(items.map(({ max }) => max)) };
    }
    case 'choice': {
      const items = expression.items.map(lengthsOf);
      return { min: Math.min(...items.map(({ min }) => min)), max: Math.max(...items.map(({ max }) => max)) };
    }
    case 'repeat': {
      const { min, max } = lengthsOf(expression.item);
      return { min: min * expression.min, max: expression.max === 0 ? 0 : max * expression.max };
    }
    default:
      return { min: 1, max: 1 };
  }
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
