/** Final answers of mathematics: found in \boxed{}, and compared after normalizing. */
import { mathValue } from './math-value.ts';

/** The content of the last `\boxed{}`, with balanced braces. */
export function boxedAnswer(text: string): string | undefined {
  const start = text.lastIndexOf('\\boxed{');
  if (start < 0) return undefined;
  const from = start + '\\boxed{'.length;
  for (let at = from, depth = 1; at < text.length; at++) {
    if (text[at] === '{') depth++;
    if (text[at] === '}' && --depth === 0) return text.slice(from, at);
  }
  return undefined;
}

/** What follows a number in words, as MATH's own comparison drops it: `10\text{ cm}^2`. */
const UNIT = /([\d}])(?:\s|\\[,;: ])*\\(?:text|mathrm|mbox)\{[^{}]*\}(?:\^\{?\d\}?)?(?=[.$\s]*$)/;

/** LaTeX that means the same, written one way. */
export const normalizeMath = (text: string): string =>
  text
    .replace(UNIT, '$1')
    .replace(/\\(?:text|mathrm|mathbf|textbf|mbox)\{([^{}]*)\}/g, '$1')
    .replace(/\\[dt]frac/g, '\\frac')
    .replace(/\\frac\s*(\d)\s*(\d)(?!\s*\{)/g, '\\frac{$1}{$2}')
    .replace(/\\frac\s*([a-zA-Z\d])\s*([a-zA-Z\d])(?![\w{])/g, '\\frac{$1}{$2}')
    .replace(/\\sqrt\s*(\w)/g, '\\sqrt{$1}')
    .replace(/\\(?:left|right|displaystyle|[,;:! ])/g, '')
    .replace(/\^\{?\\circ\}?|\\degree|\\%|\\\$|[$%°]/g, '')
    .replace(/\{,\}/g, ',')
    .replace(/(?<=\d),(?=\d{3}(?!\d))/g, '')
    .replace(/\s+/g, '')
    .replace(/^[a-zA-Z](?:\\in|=)/, '')
    .replace(/\.$/, '')
    .replace(/^\(([a-zA-Z])\)$/, '$1');

export function isSameMath(said: string, answer: string): boolean {
  const [a, b] = [normalizeMath(said), normalizeMath(answer)];
  if (a === b) return a !== '';
  const [x, y] = [mathValue(a), mathValue(b)];
  return x !== undefined && y !== undefined && Math.abs(x - y) <= 1e-9 * Math.max(1, Math.abs(y));
}
