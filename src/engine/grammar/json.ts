/** Expressions for JSON text. White space: at most one space after a colon or comma. */

import {
  character,
  choice,
  complement,
  type Expression,
  optional,
  type Range,
  repeat,
  rule,
  sequence,
  text,
  texts,
} from './expression.ts';
import { anyNumber } from './numbers.ts';
import type { Spend } from './work.ts';

const code = (letter: string): number => letter.codePointAt(0)!;

/** Characters that a JSON string cannot contain as they are: quotes, backslashes and control characters. */
export const ESCAPED: readonly Range[] = [
  [0, 0x1f],
  [code('"'), code('"')],
  [code('\\'), code('\\')],
];

export const comma = sequence(text(','), optional(text(' ')));
export const colon = sequence(text(':'), optional(text(' ')));
const quote = text('"');

const hex = character([48, 57], [65, 70], [97, 102]);
/** No halves of surrogate pairs: two escapes would count as one character. */
const unicodeEscape = choice(
  sequence(character([48, 57], [65, 67], [69, 70], [97, 99], [101, 102]), hex, hex, hex),
  sequence(character([68, 68], [100, 100]), character([48, 55]), hex, hex),
);
const plainCharacter = character(...complement(ESCAPED));
export const stringCharacter: Expression = choice(
  plainCharacter,
  sequence(text('\\'), choice(texts([...'"\\/bfnrt']), sequence(text('u'), unicodeEscape))),
);

export const stringOf = (content: Expression): Expression => sequence(quote, content, quote);
export const stringOfLength = (min: number, max: number): Expression => stringOf(repeat(stringCharacter, min, max));
export const anyCharacters = repeat(stringCharacter, 0);
export const anyString = stringOf(anyCharacters);

/** Names that begin with as many characters of a longer one are not allowed. */
const MAX_NAME = 256;
/** Steps per character of a name. */
const NAME_WORK = 10;

/** A property name that is none of these. It has no escapes, which could spell one of them. */
export function nameExcept(names: readonly string[], spend: Spend): Expression {
  const restAfter = (taken: readonly string[], depth: number): Expression => {
    spend(NAME_WORK * (1 + taken.length));
    const firsts = new Map<string, string[]>();
    for (const name of taken) {
      const [first = ''] = name;
      const rest = name.slice(first.length);
      const group = firsts.get(first);
      if (group) group.push(rest);
      else firsts.set(first, [rest]);
    }
    const starts = [...firsts.keys()].filter(first => first !== '');
    const others = complement([...ESCAPED, ...starts.map((first): Range => [code(first), code(first)])]);
    return choice(
      ...(firsts.has('') ? [] : [text('')]),
      sequence(character(...others), repeat(plainCharacter, 0)),
      ...(depth < MAX_NAME ? starts.map(first => sequence(text(first), restAfter(firsts.get(first)!, depth + 1))) : []),
    );
  };
  // Names that need escapes cannot be spelled without them.
  const spelled = names.filter(name => JSON.stringify(name) === `"${name}"`);
  return stringOf(restAfter(spelled, 1));
}

/** Items separated by commas. */
export function list(item: Expression, min: number, max: number): Expression {
  if (max === 0) return text('');
  const items = sequence(item, repeat(sequence(comma, item), Math.max(0, min - 1), max - 1));
  return min === 0 ? optional(items) : items;
}

export const ANY_VALUE = 'any value';
const ANY_OBJECT = 'any object';
const anyValue = rule(ANY_VALUE);
export const anyObject = rule(ANY_OBJECT);
export const anyArray = (min = 0, max = Number.POSITIVE_INFINITY): Expression =>
  sequence(text('['), list(anyValue, min, max), text(']'));

/** The rules that the expressions above refer to. */
export const jsonRules: readonly (readonly [string, Expression])[] = [
  [ANY_OBJECT, sequence(text('{'), list(sequence(anyString, colon, anyValue), 0, Number.POSITIVE_INFINITY), text('}'))],
  [ANY_VALUE, choice(anyObject, anyArray(), anyString, anyNumber, texts(['true', 'false', 'null']))],
];
