/** Regular expressions as grammars of JSON strings: the part of ECMAScript's syntax that describes plain text. */
import {
  character,
  choice,
  complement,
  type Expression,
  isNullable,
  matchesText,
  type Range,
  repeat,
  sequence,
  text,
} from './expression.ts';
import { anyCharacters, ESCAPED } from './json.ts';
import type { Spend } from './work.ts';

/** A pattern that is not supported, and why. */
export class PatternError extends Error {}

const MAX_REPEAT = 1000;
/** Steps of a character of a pattern, and of a range in a class. */
const LETTER_WORK = 20;
const RANGE_WORK = 20;

const range = (first: string, last = first): Range => [first.codePointAt(0)!, last.codePointAt(0)!];
const DIGITS = [range('0', '9')];
const WORD = [...DIGITS, range('A', 'Z'), range('a', 'z'), range('_')];
const SPACE = [
  ...[range('\t', '\r'), range(' '), range('\u00a0'), range('\u1680'), range('\u2000', '\u200a')],
  ...[range('\u2028', '\u2029'), range('\u202f'), range('\u205f'), range('\u3000'), range('\ufeff')],
];
const LINE_ENDS = [range('\n'), range('\r'), range('\u2028', '\u2029')];
const CLASSES: Record<string, readonly Range[]> = {
  d: DIGITS,
  D: complement(DIGITS),
  w: WORD,
  W: complement(WORD),
  s: SPACE,
  S: complement(SPACE),
};
const CONTROLS: Record<string, string> = { n: '\n', r: '\r', t: '\t', f: '\f', v: '\v', 0: '\0' };

/** The content of a JSON string in which the pattern is found. Anchors are supported at its beginning and end. */
export function parsePattern(source: string, spend: Spend): Expression {
  const known = parsedFormats.get(source);
  if (known) return known;
  const parsed = parse(source, spend);
  if (Object.values(formats).includes(source)) parsedFormats.set(source, parsed);
  return parsed;
}

/** Whether the pattern is found in a text; undefined if it is not supported. */
export function matchesPattern(value: string, pattern: string, spend: Spend): boolean | undefined {
  let content: Expression;
  try {
    content = parsePattern(pattern, spend);
  } catch (error) {
    if (error instanceof PatternError) return undefined;
    throw error;
  }
  return matchesText(content, JSON.stringify(value).slice(1, -1), spend);
}

/** Formats are parsed once: the parameters of many tools have the same ones. */
const parsedFormats = new Map<string, Expression>();

function parse(source: string, spend: Spend): Expression {
  spend(LETTER_WORK * source.length);
  const letters = [...source];
  let at = 0;
  const peek = (word: string) => {
    for (let i = 0; i < word.length; i++) if (letters[at + i] !== word[i]) return false;
    return true;
  };
  const take = (word: string): boolean => {
    if (!peek(word)) return false;
    at += word.length;
    return true;
  };
  const fail = (reason: string): never => {
    throw new PatternError(`${reason} at character ${at}`);
  };

  const alternatives = (depth: number): Expression => {
    const items: Expression[] = [];
    do items.push(alternative(depth));
    while (take('|'));
    return choice(...items);
  };

  const alternative = (depth: number): Expression => {
    const isTop = depth === 0;
    const items: Expression[] = [];
    if (isTop && !take('^')) items.push(anyCharacters);
    while (at < letters.length && !peek('|') && !peek(')')) {
      if (isTop && peek('$') && (at + 1 === letters.length || letters[at + 1] === '|')) break;
      items.push(quantified(depth));
    }
    if (isTop && !take('$')) items.push(anyCharacters);
    return sequence(...items);
  };

  const quantified = (depth: number): Expression => {
    const item = atom(depth);
    const bounds = quantifier();
    if (!bounds) return item;
    take('?');
    const [min, max] = bounds;
    if (Math.max(min, max === Number.POSITIVE_INFINITY ? 0 : max) > MAX_REPEAT)
      fail(`a repetition above ${MAX_REPEAT}`);
    if (min > max) fail('a repetition whose bounds are in the wrong order');
    if (isNullable(item) && max > 1) fail('a repetition of what may be empty');
    return repeat(item, min, max);
  };

  const quantifier = (): [number, number] | undefined => {
    if (take('*')) return [0, Number.POSITIVE_INFINITY];
    if (take('+')) return [1, Number.POSITIVE_INFINITY];
    if (take('?')) return [0, 1];
    if (!peek('{')) return undefined;
    const found = /^\{(\d{1,9})(,?)(\d{0,9})\}/.exec(letters.slice(at, at + 24).join(''));
    if (!found) return fail('a brace that is no repetition');
    at += found[0].length;
    const [, min, separator, max] = found;
    if (!separator) return [Number(min), Number(min)];
    return [Number(min), max === '' ? Number.POSITIVE_INFINITY : Number(max)];
  };

  const atom = (depth: number): Expression => {
    if (depth > 32) fail('groups nested too deep');
    if (take('(')) {
      if (peek('?') && !take('?:')) {
        if (peek('?=') || peek('?!') || peek('?<=') || peek('?<!')) fail('a lookaround');
        if (!peek('?<')) fail('an unknown group');
        while (at < letters.length && !take('>')) at++;
      }
      const inner = alternatives(depth + 1);
      if (!take(')')) fail('a group that is not closed');
      return inner;
    }
    if (take('.')) return anyLetter;
    if (take('[')) {
      const ranges = characterClass();
      spend(RANGE_WORK * (ranges.length + 1));
      return inString(ranges);
    }
    if (peek('^') || peek('$')) fail('an anchor inside the pattern');
    if (/[*+?{}\])]/.test(letters[at])) fail(`an unexpected ${letters[at]}`);
    return inString(escapeOrLetter());
  };

  const escapeOrLetter = (): readonly Range[] => {
    if (!take('\\')) return [range(letters[at++])];
    const letter = letters[at++] ?? fail('a backslash at the end');
    if (Object.hasOwn(CLASSES, letter)) return CLASSES[letter];
    if (Object.hasOwn(CONTROLS, letter) && !/\d/.test(letters[at] ?? '')) return [range(CONTROLS[letter])];
    const hex = /^(?:x([\da-f]{2})|u([\da-f]{4})|u\{([\da-f]{1,6})\})/i.exec(
      letter + letters.slice(at, at + 9).join(''),
    );
    if (hex) {
      at += hex[0].length - 1;
      const code = Number.parseInt(hex[1] ?? hex[2] ?? hex[3], 16);
      if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) fail('an escape that is no character');
      return [[code, code]];
    }
    if (/[\p{L}\p{N}]/u.test(letter)) fail(`the escape \\${letter}`);
    return [range(letter)];
  };

  const characterClass = (): readonly Range[] => {
    const isNegated = take('^');
    const ranges: Range[] = [];
    while (!take(']')) {
      if (at >= letters.length) fail('a character class that is not closed');
      const first = peek('\\b') ? fail('the escape \\b') : escapeOrLetter();
      if (peek('-') && letters[at + 1] !== ']' && first.length === 1 && first[0][0] === first[0][1]) {
        at++;
        const [[last, end] = [0, 1], ...more] = escapeOrLetter();
        if (more.length > 0 || last !== end || last < first[0][0]) fail('a range of characters in the wrong order');
        ranges.push([first[0][0], last]);
      } else ranges.push(...first);
    }
    return isNegated ? complement(ranges) : ranges;
  };

  const parsed = alternatives(0);
  if (at < letters.length) fail(`an unexpected ${letters[at]}`);
  return parsed;
}

/** One of these characters in a JSON string: those that need it are escaped. */
function inString(ranges: readonly Range[]): Expression {
  const [[low, high] = [0, 0]] = ranges;
  if (ranges.length === 1 && low === high && !ESCAPED.some(([first, last]) => low >= first && low <= last))
    return character(...ranges);
  const excluded = complement(ranges);
  const plain = complement([...excluded, ...ESCAPED]);
  const has = (code: number) => ranges.some(([low, high]) => code >= low && code <= high);
  const escaped = ['"', '\\', '\b', '\t', '\n', '\f', '\r'].filter(letter => has(letter.charCodeAt(0)));
  return choice(
    ...(plain.length > 0 ? [character(...plain)] : []),
    ...escaped.map(letter => text(JSON.stringify(letter).slice(1, -1))),
    ...(plain.length + escaped.length === 0 ? [character()] : []),
  );
}

const anyLetter = inString(complement(LINE_ENDS));

const DATE =
  '\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))';
const TIME = '(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)';
const BYTE = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const LABEL = '[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?';

/** Of a URI's path and query, and of its fragment. */
const LETTER = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})";

/** The formats that are enforced, as patterns. They match a little less than the formats allow. */
export const formats: Readonly<Record<string, string>> = {
  date: `^${DATE}$`,
  time: `^${TIME}$`,
  'date-time': `^${DATE}T${TIME}$`,
  uuid: '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$',
  ipv4: `^${BYTE}\\.${BYTE}\\.${BYTE}\\.${BYTE}$`,
  hostname: `^${LABEL}(?:\\.${LABEL}){0,3}$`,
  email: `^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@${LABEL}(?:\\.${LABEL}){0,2}\\.[a-z]{2,24}$`,
  uri: `^[a-z][a-z0-9+.-]{1,19}:(?://[A-Za-z0-9._~-]{0,253}(?::\\d{1,4})?(?:[/?]${LETTER}*)?|[A-Za-z0-9]${LETTER}*)(?:#${LETTER}*)?$`,
};

export const isFormat = (name: string): boolean => Object.hasOwn(formats, name);

/** Why a format cannot be enforced. */
export const unknownFormat = (name: string): string =>
  `is ${name.slice(0, 40)}, which is not enforced; ${Object.keys(formats).join(', ')} are.`;
