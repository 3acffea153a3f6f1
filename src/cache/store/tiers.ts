/** Tiers as text: `host=4GiB,disk=/var/cache/kvasir:50GiB,redis=redis://host:6379`, fastest first; in browsers, `opfs=2GiB`. */
import { closestName } from '../../closest-name.ts';
import { InputError } from '../../errors.ts';
import { parseBytes } from '../../units.ts';

export type Tier =
  | { type: 'host'; capacity: number }
  | { type: 'disk'; path: string; capacity: number }
  /** The storage of a site, in browsers. */
  | { type: 'opfs'; capacity: number }
  /** `cluster`: the urls are some of its nodes, from which the others are found. */
  | { type: 'redis'; urls: readonly string[]; cluster: boolean };

const TYPES = ['host', 'disk', 'opfs', 'redis', 'redis-cluster'];
const EXAMPLES =
  'host=4GiB, disk=/path:50GiB, opfs=2GiB, redis=redis://host:6379, redis-cluster=redis://a:6379|redis://b:6379';

/** Parses a list of tiers. */
export function parseTiers(text: string): Tier[] {
  const tiers = text.split(',').map(part => parseTier(part.trim()));
  for (const [i, { type }] of tiers.entries())
    if (tiers.findIndex(tier => tier.type === type) !== i)
      throw new InputError(`"${text}" has two ${type} tiers. Name each once, the fastest first.`);
  return tiers;
}

function parseTier(text: string): Tier {
  const [, type, value] = text.match(/^([^=]*)=(.*)$/) ?? [];
  if (!type || !value) throw new InputError(`"${text}" is not a tier. Write ${EXAMPLES}.`);
  switch (type) {
    case 'host':
    case 'opfs':
      return { type, capacity: parseBytes(value) };
    case 'disk': {
      const colon = value.lastIndexOf(':');
      if (colon < 1) throw new InputError(`"${text}" has no capacity. Write disk=/path:50GiB.`);
      return { type, path: value.slice(0, colon), capacity: parseBytes(value.slice(colon + 1)) };
    }
    case 'redis':
      return { type, urls: [parseUrl(value)], cluster: false };
    case 'redis-cluster':
      return { type: 'redis', urls: value.split('|').map(parseUrl), cluster: true };
  }
  const suggestion = closestName(type, TYPES);
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`There is no tier "${type}". ${hint}Write ${EXAMPLES}.`);
}

/** The url itself is not repeated in errors: it may have a password. */
function parseUrl(text: string): string {
  const isValid = URL.canParse(text) && ['redis:', 'rediss:'].includes(new URL(text).protocol);
  if (!isValid)
    throw new InputError('The url of a redis tier is not valid. Write redis://host:6379, or rediss:// for TLS.');
  return text;
}
