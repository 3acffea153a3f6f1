/**
 * Tiers as text: `host=4GiB,disk=/var/cache/kvasir:50GiB,redis=redis://host:6379`, fastest first; in browsers, `opfs=2GiB`.
 * Options follow a question mark: `disk=/dir:50GiB?ttl=30d`, `redis=rediss://host:6379?timeout=500ms&ca=/etc/ca.pem`.
 */
import { closestName } from '../util/closest-name.ts';
import { InputError } from '../util/errors.ts';
import { parseBytes, parseDuration } from '../util/units.ts';

export type Tier =
  | { type: 'host'; capacity: number }
  | ({ type: 'disk'; path: string; capacity: number } & Expiry)
  /** The storage of a site, in browsers. */
  | ({ type: 'opfs'; capacity: number } & Expiry)
  | RedisTier;

interface Expiry {
  /** How long records are kept, in ms. Default: 7 days; in Redis, 1 day. */
  ttlMs?: number;
}

export interface RedisTier extends Expiry {
  type: 'redis';
  /**
   * `redis://user:password@host:port/db`, or `rediss://` for TLS. In a cluster: some of its nodes, from which the others
   * are found; these are asked with the user, password and TLS of the first one.
   */
  urls: readonly string[];
  cluster: boolean;
  /** Max time to connect, and of each round of commands, in ms. Default: 1000. */
  timeoutMs?: number;
  /** TLS options, as of Node's `tls.connect`: ca, cert, key. The urls begin with `rediss://` then. */
  tls?: object;
  /** The same from PEM files: their paths. */
  tlsFiles?: TlsFiles;
}

export interface TlsFiles {
  /** The certificate of an authority that is trusted. */
  ca?: string;
  /** The client's own certificate, and its key. */
  cert?: string;
  key?: string;
}

const TYPES = ['host', 'disk', 'opfs', 'redis', 'redis-cluster'];
const EXAMPLES =
  'host=4GiB, disk=/path:50GiB, opfs=2GiB, redis=redis://host:6379, redis-cluster=redis://a:6379|redis://b:6379';

/** Parses a list of tiers. */
export function parseTiers(text: string): Tier[] {
  const tiers = text.split(',').map(part => parseTier(part.trim()));
  for (const [i, { type }] of tiers.entries())
    if (tiers.findIndex(tier => tier.type === type) !== i)
      throw new InputError(`"${hideUser(text)}" has two ${type} tiers. Name each once, the fastest first.`);
  return tiers;
}

function parseTier(text: string): Tier {
  // A path may have a question mark, too.
  const [, type, value, query] = text.match(/^([^=]*)=(.*?)(?:\?([a-z]+=[^?]*))?$/) ?? [];
  const options = (...names: readonly TierOption[]) => parseOptions(query, names, type);
  if (!type || !value) throw new InputError(`"${hideUser(text)}" is not a tier. Write ${EXAMPLES}.`);
  switch (type) {
    case 'host':
      return { type, capacity: parseBytes(value), ...options() };
    case 'opfs':
      return { type, capacity: parseBytes(value), ...options('ttl') };
    case 'disk': {
      const colon = value.lastIndexOf(':');
      if (colon < 1) throw new InputError(`"${text}" has no capacity. Write disk=/path:50GiB.`);
      return { type, path: value.slice(0, colon), capacity: parseBytes(value.slice(colon + 1)), ...options('ttl') };
    }
    case 'redis':
      return { type, urls: [parseUrl(value)], cluster: false, ...options(...REDIS_OPTIONS) };
    case 'redis-cluster':
      return { type: 'redis', urls: value.split('|').map(parseUrl), cluster: true, ...options(...REDIS_OPTIONS) };
  }
  const suggestion = closestName(type, TYPES);
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`There is no tier "${hideUser(type)}". ${hint}Write ${EXAMPLES}.`);
}

/** The fields of a tier that options in text set. */
const TIMES = { ttl: 'ttlMs', timeout: 'timeoutMs' } as const;
const FILES = ['ca', 'cert', 'key'] as const;
type TierOption = keyof typeof TIMES | (typeof FILES)[number];
const REDIS_OPTIONS = ['ttl', 'timeout', ...FILES] as const;

function parseOptions(
  query: string | undefined,
  allowed: readonly TierOption[],
  type: string,
): { ttlMs?: number; timeoutMs?: number; tlsFiles?: TlsFiles } {
  const parsed: ReturnType<typeof parseOptions> = {};
  for (const part of query?.split('&') ?? []) {
    const [name] = part.split('=', 1);
    const value = part.slice(name.length + 1);
    const option = allowed.find(one => one === name);
    if (!option)
      throw new InputError(
        `A ${type} tier has no option "${name}". ` +
          (allowed.length > 0 ? `Its options: ${allowed.join(', ')}, such as ?ttl=12h.` : 'It has none.'),
      );
    if (option === 'ttl' || option === 'timeout') parsed[TIMES[option]] = parseDuration(value);
    else parsed.tlsFiles = { ...parsed.tlsFiles, [option]: value };
  }
  return parsed;
}

/** Users and passwords come before the last `@`. */
const hideUser = (text: string): string => text.replace(/^.*@/s, '...@');

/** The url itself is not repeated in errors: it may have a password. */
export function parseUrl(text: string): string {
  const isValid = URL.canParse(text) && ['redis:', 'rediss:'].includes(new URL(text).protocol);
  if (!isValid)
    throw new InputError('The url of a redis tier is not valid. Write redis://host:6379, or rediss:// for TLS.');
  return text;
}
