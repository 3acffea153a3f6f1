/**
 * Three sizes of the same suite. `npm test` runs the representatives of a large matrix of cases, `npm run test:all` (which
 * CI runs) all of them, and `npm run test:long` soaks as well: more runs, longer prompts.
 *
 *     it.each(matrix(['tq2', 'tq3', 'tq4'], { tq4: 'int8 dot products' }))('%s ...', spec => { ... });
 *
 * A representative is named with its reason: the code path that no other representative takes.
 */
import { it } from 'vitest';

export const LONG_CASES = process.env.KVASIR_LONG === '1';
export const ALL_CASES = process.env.KVASIR_ALL === '1' || LONG_CASES;

/** A test that only `npm run test:all` runs; `npm test` shows it as skipped. */
export const itAll: ReturnType<typeof it.skipIf> = it.skipIf(!ALL_CASES);

/** All cases, or only those that are named in `representatives`. A case is named by its text unless `nameOf` is given. */
export function matrix<Case>(
  all: readonly Case[],
  representatives: Readonly<Record<string, string>>,
  nameOf: (value: Case) => string = String,
): Case[] {
  const names = all.map(nameOf);
  const unknown = Object.keys(representatives).filter(name => !names.includes(name));
  if (unknown.length > 0) throw new Error(`Representatives that are not cases: ${unknown.join(', ')}`);
  return all.filter((_, i) => ALL_CASES || names[i] in representatives);
}
