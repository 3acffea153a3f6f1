/** API keys and the tenants that they belong to. */
import { createHash, timingSafeEqual } from 'node:crypto';
import { z } from 'zod';
import { InputError } from '../util/errors.ts';
import { invalidKey } from './errors.ts';

/** A user or group of users. Prefixes are shared within a tenant, never across. */
export interface Tenant {
  readonly name: string;
  /** Max answers at the same time. */
  readonly maxRequests?: number;
  /** Max tokens in prompts that wait for their first token. */
  readonly maxQueuedTokens?: number;
  /** May see what all tenants do. Default: only if there are no others. */
  readonly operator?: boolean;
}

export interface TenantConfig extends Tenant {
  readonly keys: readonly string[];
}

/** Everybody, if no tenants are configured. */
export const DEFAULT_TENANT: Tenant = { name: 'default' };

/** Who asks on the port for operators. */
export const OPERATOR: Tenant = { name: 'operator', operator: true };

const MIN_KEY_LENGTH = 8;

const count = z.int().min(1).optional();
const fileSchema = z.strictObject({
  tenants: z
    .array(
      z.strictObject({
        name: z.string().regex(/^[\w.-]{1,64}$/, 'must be 1 to 64 letters, digits, dots, dashes or underscores'),
        keys: z.array(z.string().min(MIN_KEY_LENGTH)).min(1),
        maxRequests: count,
        maxQueuedTokens: count,
        operator: z.boolean().optional(),
      }),
    )
    .min(1),
});

/** Reads the text of a key file. */
export function parseTenants(json: string, path: string): TenantConfig[] {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    // Without its cause, which quotes the text: that has keys.
    throw new InputError(`${path} is not valid JSON. It must be { "tenants": [{ "name", "keys" }] }.`);
  }
  const { data, error } = fileSchema.safeParse(value);
  if (!data) throw new InputError(`${path} is not a key file: ${z.prettifyError(error)}`);
  const names = data.tenants.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) throw new InputError(`${path} has two tenants with the name ${twice}. Join them.`);
  return data.tenants;
}

export interface Keyring {
  /** Whether requests need a key. */
  readonly isRequired: boolean;
  /** The tenant of a key; throws a 401 if there is none. Without keys, everybody is the default tenant. */
  tenantOf(key: string | undefined): Tenant;
}

const digest = (key: string): Buffer => createHash('sha256').update(key).digest();

export function createKeyring(tenants: readonly TenantConfig[]): Keyring {
  const isOnly = tenants.length === 1;
  const known = tenants.flatMap(({ keys, ...tenant }) =>
    keys.map(key => ({ hash: digest(key), tenant: { ...tenant, operator: tenant.operator ?? isOnly } })),
  );
  const seen = new Set<string>();
  for (const key of tenants.flatMap(({ keys }) => keys)) {
    if (key.length < MIN_KEY_LENGTH)
      throw new InputError(`An API key must have at least ${MIN_KEY_LENGTH} characters; one has ${key.length}.`);
    if (seen.has(key)) throw new InputError('Two API keys are the same. Every key belongs to one tenant.');
    seen.add(key);
  }
  return {
    isRequired: known.length > 0,
    tenantOf(key) {
      if (known.length === 0) return { ...DEFAULT_TENANT, operator: true };
      if (!key) throw invalidKey(true);
      const hash = digest(key);
      // All keys are compared, each in constant time: the time says nothing about them.
      const [match] = known.filter(entry => timingSafeEqual(entry.hash, hash));
      if (!match) throw invalidKey(false);
      return match.tenant;
    },
  };
}

/** The key of a request: OpenAI's clients send a Bearer token, Anthropic's x-api-key. */
export function keyOf(headers: Headers): string | undefined {
  const [, bearer] = headers.get('authorization')?.match(/^Bearer\s+(\S+)\s*$/i) ?? [];
  return bearer ?? headers.get('x-api-key')?.trim();
}
