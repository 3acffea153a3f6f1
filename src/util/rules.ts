/** Validation of options by a table: one rule per option name. */

import { closestName } from './closest-name.ts';
import { describeValue, isPlainObject } from './describe-value.ts';
import { InputError, optionError } from './errors.ts';

/** Throws an `optionError` if the value is invalid. */
export type Rule = (value: unknown, name: string) => void;

export type Rules = Readonly<Record<string, Rule>>;

export const rule =
  (expected: string, isValid: (value: unknown) => boolean): Rule =>
  (value, name) => {
    if (!isValid(value)) throw optionError(name, `must be ${expected}; got ${describeValue(value)}.`);
  };

export const number = (expected: string, isValid: (value: number) => boolean): Rule =>
  rule(expected, value => typeof value === 'number' && isValid(value));

export const integer = (min: number, max = Number.MAX_SAFE_INTEGER): Rule =>
  number(
    max < Number.MAX_SAFE_INTEGER ? `an integer from ${min} to ${max}` : `an integer, ${min} or more`,
    value => Number.isSafeInteger(value) && value >= min && value <= max,
  );

export const oneOf = (...values: readonly string[]): Rule =>
  rule(values.map(value => `'${value}'`).join(' or '), value => values.includes(value as string));

export const string = (expected = 'a string'): Rule => rule(expected, value => typeof value === 'string');
export const boolean: Rule = rule('true or false', value => typeof value === 'boolean');
export const callback: Rule = rule('a function', value => typeof value === 'function');

/** Checks the given values by their rules; undefined counts as not given. */
export function applyRules(options: object, rules: Rules, prefix = ''): void {
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined && Object.hasOwn(rules, name)) rules[name](value, prefix + name);
  }
}

/** As `applyRules`, and rejects names that have no rule. `caller` is the function with these options: `loadModel`. */
export function checkOptions(caller: string, options: unknown, rules: Rules, prefix = ''): void {
  if (options === undefined) return;
  if (!isPlainObject(options))
    throw new InputError(`The options of ${caller} must be an object, such as {}; got ${describeValue(options)}.`);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || Object.hasOwn(rules, name)) continue;
    const known = Object.keys(rules);
    const suggestion = closestName(name, known);
    const help = suggestion
      ? `Did you mean ${prefix + suggestion}?`
      : `Its options are ${known.map(key => prefix + key).join(', ')}.`;
    throw new InputError(`${caller} has no option ${prefix + name.slice(0, 60)}. ${help}`);
  }
  applyRules(options, rules, prefix);
}

export function checkLayer(layer: number, layers: number): void {
  if (!Number.isInteger(layer) || layer < 0 || layer >= layers)
    throw new InputError(`The layer must be an integer from 0 to ${layers - 1}; got ${describeValue(layer)}.`);
}

export const checkTokens = (name: string, value: number, min: number, max: number): void =>
  integer(min, max)(value, name);
