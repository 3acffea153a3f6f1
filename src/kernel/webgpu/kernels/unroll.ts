/**
 * Loops that are unrolled in the text of a kernel, so that arrays become registers. Indices have one letter:
 *
 *   @unroll(j, 4) let x$j = code >> $(8 * j);   a statement, or a block without its braces, for j = 0 to 3
 *   @unroll(j, 1..4) ...                        for j = 1 to 3
 *   @unroll(s in [key, value]) ...              for these words instead
 *   vec4f(@list(j, 4, x$j))                     the same with commas: vec4f(x0, x1, x2, x3)
 *   @sum(j, 4, x$j)                             with plus signs
 *   $j  $(8 * j)                                an index, also as part of a name, and integer arithmetic with indices
 *   top$[q]                                     component q of vectors that are named top0, top1 and so on
 *
 * A block that has a scope of its own in each round is written with two pairs of braces.
 */
import { assert } from '../../../util/errors.ts';

type Indices = Readonly<Record<string, string>>;

const SEPARATORS: Record<string, string> = { unroll: '\n', list: ', ', sum: ' + ' };
const NEXT = /@(unroll|list|sum)\(|\$([a-z([])/;
/** The index of a loop, its words or its first and last number, and the rest. */
const LOOP = /^([a-z])(?: in \[([^\]]*)\]|, *(?:([^,]*)\.\.)?([^,]*))(?:,\s*([\s\S]*))?$/;

export const unroll = (text: string): string => expand(text, {});

function expand(text: string, indices: Indices): string {
  let [result, rest] = ['', text];
  for (let found = NEXT.exec(rest); found; found = NEXT.exec(rest)) {
    const [start, loop, reference] = found;
    const first = found.index + start.length;
    result += rest.slice(0, found.index);
    if (/^[a-z]$/.test(reference)) {
      result += lookUp(reference, indices);
      rest = rest.slice(first);
      continue;
    }
    const close = closingBracket(rest, first - 1);
    const inside = rest.slice(first, close);
    const end = loop === 'unroll' ? statementEnd(rest, close + 1) : close + 1;
    if (loop) {
      const parts = LOOP.exec(inside);
      assert(parts, `@${loop}(${inside}) has an index and a count`);
      const [, index, words, from = '0', to, item] = parts;
      const values = words === undefined ? range(from, to, indices) : listed(words, indices);
      const body = item ?? withoutBraces(rest.slice(close + 1, end).trim());
      result += values.map(value => expand(body, { ...indices, [index]: value })).join(SEPARATORS[loop]);
    } else {
      const value = evaluate(inside, indices);
      result += reference === '(' ? value : `${value >> 2}[${value & 3}]`;
    }
    rest = rest.slice(end);
  }
  return result + rest;
}

function lookUp(index: string, indices: Indices): string {
  assert(index in indices, `$${index} is not the index of a loop around it`);
  return indices[index];
}

function range(from: string, to: string, indices: Indices): string[] {
  const first = evaluate(from, indices);
  return Array.from({ length: evaluate(to, indices) - first }, (_, n) => `${first + n}`);
}

const listed = (words: string, indices: Indices): string[] =>
  expand(words, indices)
    .split(/[\s,]+/)
    .filter(Boolean);

const withoutBraces = (body: string) => (body.startsWith('{') ? body.slice(1, -1) : body);

/** The bracket that closes the one at `open`. */
function closingBracket(text: string, open: number): number {
  let depth = 0;
  for (const { 0: token, index } of text.slice(open).matchAll(/\/\/.*|[()[\]{}]/g)) {
    if ('([{'.includes(token)) depth++;
    else if (')]}'.includes(token) && --depth === 0) return open + index;
  }
  throw new Error(`a bracket is not closed: ${text.slice(open, open + 80)}`);
}

/** Where the statement at `from` ends: after a semicolon or a block. */
function statementEnd(text: string, from: number): number {
  for (let at = from; ; at++) {
    const bracket = /\/\/.*|[([{;]/.exec(text.slice(at));
    assert(bracket, `a statement does not end: ${text.slice(from, from + 80)}`);
    at += bracket.index;
    if (bracket[0] === ';') return at + 1;
    if (bracket[0].startsWith('/')) at += bracket[0].length - 1;
    else at = closingBracket(text, at);
    if (bracket[0] === '{' && !/^}\s*else\b/.test(text.slice(at))) return at + 1;
  }
}

/** Integer arithmetic: + - * / % min and parentheses. */
function evaluate(expression: string, indices: Indices): number {
  const tokens = expression.match(/\d+|[a-z]+|[^\s$]/g) ?? [];
  const next = (token: string) => tokens[0] === token && tokens.shift() !== undefined;
  const sum = (): number => {
    let value = product();
    while (tokens[0] === '+' || tokens[0] === '-') value += tokens.shift() === '+' ? product() : -product();
    return value;
  };
  const product = (): number => {
    let value = term();
    for (;;) {
      if (next('*')) value *= term();
      else if (next('/')) value = Math.floor(value / term());
      else if (next('%')) value %= term();
      else return value;
    }
  };
  const term = (): number => {
    const token = tokens.shift() ?? '';
    if (token === 'min') {
      tokens.shift();
      const values = [sum()];
      while (next(',')) values.push(sum());
      tokens.shift();
      return Math.min(...values);
    }
    if (token !== '(') return Number(/^\d/.test(token) ? token : lookUp(token, indices));
    const value = sum();
    tokens.shift();
    return value;
  };
  const value = sum();
  assert(tokens.length === 0 && Number.isInteger(value), `not integer arithmetic: ${expression}`);
  return value;
}
