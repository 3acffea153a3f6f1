/** The value of an expression of numbers in LaTeX, so that `\frac{3\pi}{2}` and `\frac32\pi` are the same answer. */

/** Undefined for anything else, such as variables, lists and units. `latex` has no white space. */
export function mathValue(latex: string): number | undefined {
  const tokens = latex.match(TOKEN);
  if (!tokens || tokens.join('') !== latex || tokens.length > MAX_TOKENS) return undefined;
  let at = 0;
  const take = (...texts: string[]): string | undefined => (texts.includes(tokens[at]) ? tokens[at++] : undefined);

  const sum = (): number => {
    let value = product();
    for (let sign = take('+', '-'); sign; sign = take('+', '-')) value += sign === '-' ? -product() : product();
    return value;
  };

  const product = (): number => {
    let value = signed();
    for (;;) {
      if (take('*', '\\cdot', '\\times')) value *= signed();
      else if (take('/', '\\div')) value /= signed();
      else if (STARTS.test(tokens[at] ?? '')) value *= power();
      else return value;
    }
  };

  const signed = (): number => (take('-') ? -signed() : take('+') ? signed() : power());

  const power = (): number => {
    const base = factor();
    return take('^') ? base ** argument() : base;
  };

  /** In braces, or one digit or name, as TeX reads it. */
  const argument = (): number => {
    const token = tokens[at] ?? '';
    if (token === '{') return group('{', '}');
    if (!/^\d\d|^\d\./.test(token)) return factor();
    tokens[at] = token.slice(1);
    return Number(token[0]);
  };

  const group = (open: string, close: string): number => {
    if (!take(open)) return Number.NaN;
    const value = sum();
    return take(close) ? value : Number.NaN;
  };

  const factor = (): number => {
    const token = tokens[at] ?? '';
    if (token === '(') return group('(', ')');
    if (token === '{') return group('{', '}');
    at++;
    if (token === '\\pi' || token === 'π') return Math.PI;
    if (token === '\\frac') return argument() / argument();
    if (token === '\\sqrt') return Math.sqrt(argument());
    if (!/^[\d.]/.test(token)) return Number.NaN;
    // A whole number and a fraction of whole numbers are a mixed number, not a product.
    const isMixed = /^\d+$/.test(token) && /^\\frac,\{,\d+,\},\{,\d+,\}(,|$)/.test(tokens.slice(at, at + 8).join());
    return Number(token) + (isMixed ? factor() : 0);
  };

  const value = sum();
  return at === tokens.length && Number.isFinite(value) ? value : undefined;
}

const TOKEN = /\d+\.?\d*|\.\d+|\\(?:frac|sqrt|pi|cdot|times|div)(?![a-zA-Z])|[-+*/^(){}π]/g;
/** What a factor begins with that is multiplied without a sign. */
const STARTS = /^[\d.({π]|^\\(?:frac|sqrt|pi)$/;
/** Also bounds the depth. */
const MAX_TOKENS = 200;
