import fc from 'fast-check';
import { expect, it } from 'vitest';
import { saltOf, tenantOf } from './salt.ts';

const name = fc.oneof(fc.string(), fc.constantFrom('', '[', '["a"]', '["a","b"]'));
const owner = fc.tuple(name, fc.option(name, { nil: undefined }));

it('tenants and their salts have salts of their own, from which the tenant is known', () => {
  fc.assert(
    fc.property(owner, owner, ([tenant, cacheSalt], [otherTenant, otherSalt]) => {
      expect(tenantOf(saltOf(tenant, cacheSalt))).toBe(tenant);
      const isSame = tenant === otherTenant && cacheSalt === otherSalt;
      expect(saltOf(tenant, cacheSalt) === saltOf(otherTenant, otherSalt)).toBe(isSame);
    }),
  );
});
