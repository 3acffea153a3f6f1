/** What an option may be, as a table: one rule per name. */
import { describe, isPlainObject } from '../describe.ts';
import { InputError } from '../errors.ts';
import { nearest } from '../nearest.ts';

/** Throws an InputError that begins with the option's name if the value does not fit. */
export type Rule = (value: unknown, name: string) => void;

export type Rules = Readonly<Record<string, Rule>>;

export const must =
  (be: string, fits: (value: unknown) => boolean): Rule =>
  (value, name) => {
    if (!fits(value)) throw new InputError(`${name} must be ${be}; got ${describe(value)}.`);
  };

export const number = (be: string, fits: (value: number) => boolean): Rule =>
  must(be, value => typeof value === 'number' && fits(value));

export const whole = (min: number, max = Number.MAX_SAFE_INTEGER): Rule =>
  number(
    max < Number.MAX_SAFE_INTEGER ? `a whole number from ${min} to ${max}` : `a whole number, ${min} or more`,
    value => Number.isSafeInteger(value) && value >= min && value <= max,
  );

export const oneOf = (...values: readonly string[]): Rule =>
  must(values.map(value => `'${value}'`).join(' or '), value => values.includes(value as string));

export const text = (be = 'a text'): Rule => must(be, value => typeof value === 'string');
export const boolean: Rule = must('true or false', value => typeof value === 'boolean');
export const callback: Rule = must('a function', value => typeof value === 'function');

/** Holds the values that are given against their rules; undefined is not given. */
export function applyRules(options: object, rules: Rules, prefix = ''): void {
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined && Object.hasOwn(rules, name)) rules[name](value, prefix + name);
  }
}

/** As `applyRules`, and refuses names that have no rule. `what` has these options: `chat`, `loadModel`. */
export function checkOptions(what: string, options: unknown, rules: Rules, prefix = ''): void {
  if (options === undefined) return;
  if (!isPlainObject(options))
    throw new InputError(`The options of ${what} must be an object, such as {}; got ${describe(options)}.`);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || Object.hasOwn(rules, name)) continue;
    const known = Object.keys(rules);
    const meant = nearest(name, known);
    const help = meant ? `Did you mean ${prefix + meant}?` : `Known are ${known.map(key => prefix + key).join(', ')}.`;
    throw new InputError(`${what} has no option ${prefix + name.slice(0, 60)}. ${help}`);
  }
  applyRules(options, rules, prefix);
}
