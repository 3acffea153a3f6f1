/** Final answers of mathematics: found in \boxed{}, and compared after normalizing. */

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

/** LaTeX that means the same, written one way. */
export const normalizeMath = (text: string): string =>
  text
    .replace(/\\(?:text|mathrm|mathbf|textbf|mbox)\{([^{}]*)\}/g, '$1')
    .replace(/\\[dt]frac/g, '\\frac')
    .replace(/\\frac\s*(\w)\s*(\w)(?![\w{])/g, '\\frac{$1}{$2}')
    .replace(/\\sqrt\s*(\w)/g, '\\sqrt{$1}')
    .replace(/\\(?:left|right|displaystyle|[,;:! ])/g, '')
    .replace(/\^\{?\\circ\}?|\\degree|\\%|\\\$|[$%°]/g, '')
    .replace(/(?<=\d),(?=\d{3}(?!\d))/g, '')
    .replace(/\s+/g, '')
    .replace(/^[a-zA-Z](?:\\in|=)/, '')
    .replace(/\.$/, '');

const NUMBER = '-?(?:\\d+(?:\\.\\d*)?|\\.\\d+)';
const FRACTION = new RegExp(`^(-?)(?:\\\\frac\\{(${NUMBER})\\}\\{(${NUMBER})\\}|(${NUMBER})/(${NUMBER}))$`);

/** The value of a number or a fraction; undefined for any other expression. */
function parseValue(normalized: string): number | undefined {
  if (new RegExp(`^${NUMBER}$`).test(normalized)) return Number(normalized);
  const [, sign, top, bottom, over = top, under = bottom] = normalized.match(FRACTION) ?? [];
  return over === undefined ? undefined : (sign === '-' ? -1 : 1) * (Number(over) / Number(under));
}

export function isSameMath(said: string, answer: string): boolean {
  const [a, b] = [normalizeMath(said), normalizeMath(answer)];
  if (a === b) return a !== '';
  const [x, y] = [parseValue(a), parseValue(b)];
  return x !== undefined && y !== undefined && Math.abs(x - y) <= 1e-9 * Math.max(1, Math.abs(y));
}
