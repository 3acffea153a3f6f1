/**
 * Schemas with values that satisfy them and values that do not. What a grammar enforces is sound: no wrong value can be
 * written, unless keywords are left out, and then they are reported.
 */
import { readFileSync } from 'node:fs';
import { beforeAll, describe, expect, it } from 'vitest';
import { checkCase, type MaskCase, readCases } from '../../../bench/masks.ts';
import { openConstraints } from '../../../test/support/constraints.ts';
import { satisfies } from './satisfies.ts';
import { typeOf } from './schema-parts.ts';

let opened: Awaited<ReturnType<typeof openConstraints>>;
beforeAll(async () => {
  opened = await openConstraints();
});

const spend = () => {};

const check = (one: MaskCase) => checkCase(opened.tokenizer, opened.constraints, one);

describe('JSON-Schema-Test-Suite', () => {
  const file = new URL('../../../test/fixtures/json-schema-test-suite/cases.json', import.meta.url);
  const cases: (MaskCase & { description: string })[] = JSON.parse(readFileSync(file, 'utf8'));

  it.each(cases.map(one => [one.description, one] as const))('%s', (name, one) => {
    const { outcome, acceptedInvalid } = check({ ...one, name });
    if (outcome === 'enforced') expect(acceptedInvalid).toEqual([]);
    for (const { data, valid } of one.tests)
      if (valid) expect(satisfies(data, one.schema, { spend }), JSON.stringify(data)).toBe(true);
  });

  it('what the grammar enforces is what the check of written calls demands', () => {
    const all = cases.map(one => ({ ...one, ...check({ ...one, name: one.description }) }));
    const checked = all.filter(({ outcome }) => outcome === 'enforced');
    expect(checked.length).toBeGreaterThan(100);
    for (const { tests, schema, description } of checked)
      for (const { data, valid } of tests)
        expect(satisfies(data, schema, { spend, isStrict: true }), `${description} ${JSON.stringify(data)}`).toBe(
          valid,
        );
  });

  /** Grammars write whole tuples, and the properties of combined schemas in an order of their own. */
  const NARROW =
    /^allOf|^prefixItems|^items: (prefixItems|items and subitems)|^const: const with object|^ref: |^uniqueItems/;

  it('a value that satisfies an enforced schema can be written, if its type is given', () => {
    const typed = cases.flatMap(({ description, schema, tests }) =>
      tests
        .filter(({ valid }) => valid && typeof schema === 'object' && !NARROW.test(description))
        .map((test, i) => ({
          name: `typed ${description} ${i}`,
          schema: { type: typeOf(test.data), ...(schema as object) },
          tests: [test],
        })),
    );
    const refused = typed
      .map(check)
      .filter(({ outcome, refusedValid }) => outcome === 'enforced' && refusedValid.length > 0);
    expect(refused.map(({ name, refusedValid }) => `${name}: ${JSON.stringify(refusedValid[0])}`)).toEqual([]);
  });
});

/** The path of MaskBench's data, which is large and has no licence: it is not here. */
const maskBench = process.env.KVASIR_MASKBENCH;

if (maskBench)
  it('every 50th schema of MaskBench: most are enforced, and those without exception', { timeout: 600_000 }, () => {
    const results = [...readCases(maskBench, 50)].map(check);
    const enforced = results.filter(({ outcome }) => outcome === 'enforced');
    expect(enforced.length / results.length).toBeGreaterThan(0.7);
    expect(enforced.filter(({ acceptedInvalid }) => acceptedInvalid.length > 0).map(({ name }) => name)).toEqual([]);
    expect(enforced.filter(({ refusedValid }) => refusedValid.length > 0).map(({ name }) => name)).toEqual([]);
  });
