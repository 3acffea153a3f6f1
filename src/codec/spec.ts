/**
 * The spec string, which names a codec in the API, the CLI, tests and files.
 *
 *   spec    = codec [ "/" codec ] { "+" window }     keys / values; a single codec is for both
 *   codec   = base { "-" variant }                   tq4-n32-haar
 *   window  = "sink" n | "recent" n | "edge" n       what stays f16: first tokens, last tokens, first and last layers
 *
 * formatSpec(parseSpec(text)) is canonical: parsing it gives the same spec.
 */
import { editDistance } from '../util/closest-name.ts';
import { SpecError } from '../util/errors.ts';
import type { Side } from './codec.ts';
import type { Family, Variant } from './family.ts';
import { families } from './zoo.ts';

export interface SideSpec {
  base: string;
  /** In the order in which the family lists them. */
  variants: string[];
}

export interface F16Window {
  sink?: number;
  recent?: number;
  edge?: number;
}

export interface KvSpec {
  key: SideSpec;
  value: SideSpec;
  window: F16Window;
}

/**
 * The first tokens of a text collect much attention, and their keys have norms that learned codebooks do not fit. Models place
 * such sinks where the beginning lets them: position 5 in a text, position 10 or so after a chat's first markers. Sixteen
 * tokens in f16 hold them; four left mead with 4 to 9 times the divergence on chats of Qwen2.5.
 */
export const DEFAULT_WINDOW: Required<F16Window> = { sink: 16, recent: 0, edge: 0 };

const WINDOWS = ['sink', 'recent', 'edge'] as const;
const MAX_WINDOW = 1 << 20;

/** One codec without variants, for keys and values. */
export function specOf(base: string, window: F16Window = {}): KvSpec {
  const side = { base, variants: [] };
  return { key: side, value: side, window };
}

export const F16: KvSpec = specOf('f16');

/** For public functions, which take a spec as text or parsed. */
export const toSpec = (spec: string | KvSpec): KvSpec => (typeof spec === 'string' ? parseSpec(spec) : spec);

export function parseSpec(text: string): KvSpec {
  const [codecs] = text.split('+', 1);
  const sides = codecs.split('/');
  if (sides.length > 2)
    throw new SpecError(`"${text}" has ${sides.length} codecs. Write one, or two as keys/values, such as tq4/tq3.`);
  const key = parseSide(sides[0], 'key', text);
  const value = sides.length === 2 ? parseSide(sides[1], 'value', text) : valueSpecOf(key);
  if (sides.length === 2) rejectKeyVariants(value, 'value', text);
  return { key, value, window: parseWindow(text.slice(codecs.length), text) };
}

/** The canonical text of a spec, which `parseSpec` reads. */
export function formatSpec({ key, value, window }: KvSpec): string {
  const shared = formatSide(valueSpecOf(key)) === formatSide(value);
  const codecs = shared ? formatSide(key) : `${formatSide(key)}/${formatSide(value)}`;
  return codecs + WINDOWS.map(name => (window[name] === undefined ? '' : `+${name}${window[name]}`)).join('');
}

/** What stays in f16 under a spec. A cache that is all f16 needs no windows. */
export function windowOf({ key, value, window }: KvSpec): Required<F16Window> {
  const exact = [key, value].every(side => formatSide(side) === 'f16');
  return exact ? { sink: 0, recent: 0, edge: 0 } : { ...DEFAULT_WINDOW, ...window };
}

export const formatSide = ({ base, variants }: SideSpec): string => [base, ...variants].join('-');

/** The family of a parsed side, and the match of its pattern. */
export function familyOf({ base }: SideSpec): { family: Family; match: RegExpMatchArray } {
  for (const family of families) {
    const match = base.match(family.pattern);
    if (match) return { family, match };
  }
  throw new SpecError(`"${base}" is not a codec. ${suggestNearest(base)}`);
}

/** Finds a family's variant (`r#`) and its number from the text (`r3`). */
export function findVariant(family: Family, text: string): { variant: Variant; number?: number } | undefined {
  for (const variant of family.variants) {
    const match = text.match(`^${variant.name.replace('#', '(\\d{1,6})')}$`);
    if (match) return { variant, number: match[1] === undefined ? undefined : Number(match[1]) };
  }
  return undefined;
}

function parseSide(text: string, side: Side, whole: string): SideSpec {
  // A base name may contain dashes (vec-d4b8), so the longest prefix that matches a family is the base name.
  const words = text.split('-');
  for (let n = words.length; n > 0; n--) {
    const base = words.slice(0, n).join('-');
    const family = families.find(({ pattern }) => pattern.test(base));
    if (family) return { base, variants: checkVariants(family, words.slice(n), `"${whole}"`) };
  }
  const where = whole === text ? '' : ` for the ${side}s in "${whole}"`;
  throw new SpecError(`"${text}" is not a codec${where}. ${suggestNearest(text)}`);
}

function checkVariants(family: Family, texts: string[], whole: string): string[] {
  const show = (name: string) => `-${name.replace('#', 'N')}`;
  const found = texts.map(text => {
    const known = findVariant(family, text);
    if (known) return known;
    const list = family.variants.map(({ name, about }) => `${show(name)} (${about})`).join(', ');
    throw new SpecError(`${whole}: ${family.title} has no variant "-${text}". It has ${list || 'none'}.`);
  });
  const names = found.map(({ variant }) => variant.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice) throw new SpecError(`${whole}: variant ${show(twice)} is given twice. Write it once.`);
  for (const [a, b] of family.conflicts ?? []) {
    if (names.includes(a) && names.includes(b))
      throw new SpecError(`${whole}: ${show(a)} and ${show(b)} exclude each other. Use one of them.`);
  }
  return found
    .sort((a, b) => family.variants.indexOf(a.variant) - family.variants.indexOf(b.variant))
    .map(({ variant, number }) => variant.name.replace('#', String(number)));
}

/** The values' spec if a single codec is given: the keys' spec without variants that are for keys only. */
function valueSpecOf(key: SideSpec): SideSpec {
  const { family } = familyOf(key);
  return { base: key.base, variants: key.variants.filter(text => findVariant(family, text)?.variant.side !== 'key') };
}

function rejectKeyVariants(spec: SideSpec, side: Side, whole: string): void {
  const { family } = familyOf(spec);
  const wrong = spec.variants.find(text => (findVariant(family, text)?.variant.side ?? side) !== side);
  if (wrong) throw new SpecError(`"${whole}": -${wrong} is for keys only. Write it before the "/".`);
}

/** Parses `+sink4+recent64`, or nothing. */
export function parseWindow(windows: string, whole: string): F16Window {
  const window: F16Window = {};
  for (const text of windows.split('+').slice(1)) {
    const [, name, digits] = text.match(/^(sink|recent|edge)(\d{1,7})$/) ?? [];
    if (!name)
      throw new SpecError(`"${whole}": "+${text}" is not a window. Use +sink4, +recent128 or +edge2, with any number.`);
    const key = name as (typeof WINDOWS)[number];
    if (window[key] !== undefined) throw new SpecError(`"${whole}": +${name} is given twice. Write it once.`);
    window[key] = Number(digits);
    if (window[key] > MAX_WINDOW) throw new SpecError(`"${whole}": +${text} is above the maximum of ${MAX_WINDOW}.`);
  }
  return window;
}

/** "Nearest: a, b, c." by edit distance over all base names and variants. */
function suggestNearest(text: string): string {
  const names = families.flatMap(({ bases, variants }) => [
    ...bases,
    ...variants.filter(({ name }) => !name.includes('#')).map(({ name }) => `${bases[0]}-${name}`),
  ]);
  const distances = new Map(names.map(name => [name, editDistance(text.toLowerCase(), name)]));
  const nearest = names.sort((a, b) => distances.get(a)! - distances.get(b)! || 0).slice(0, 3);
  return `Nearest: ${nearest.join(', ')}. \`kvasir codecs\` lists all.`;
}
