/** The salt of a request: what separates prefixes in the cache, and the keys of leaves. */

/**
 * Users may choose a salt, and must not reach another tenant's prefixes by it. A tenant alone is its own salt, unless that
 * could be read as a tenant with a salt.
 */
export const saltOf = (tenant: string, cacheSalt?: string): string =>
  cacheSalt === undefined && !tenant.startsWith('[')
    ? tenant
    : JSON.stringify(cacheSalt === undefined ? [tenant] : [tenant, cacheSalt]);

/** The tenant of a salt. */
export const tenantOf = (salt: string): string => (salt.startsWith('[') ? JSON.parse(salt)[0] : salt);
