/**
 * What web pages may ask. A browser sends requests for any page that is open in it, also to servers that only this machine
 * can reach. Pages of other origins are told from clients by what browsers add to a request, and a page whose name was made
 * to point here (DNS rebinding) by the name in its `Host`.
 */
import { isIP } from 'node:net';
import { ApiError } from './errors.ts';

export interface PageRules {
  /** Throws if the name by which the server was asked is not one of its own. */
  checkHost(request: Request): void;
  /** Throws if a page of an origin that is not allowed asks. */
  checkOrigin(request: Request): void;
  /** The origins of pages that may ask, as CORS has them. */
  readonly origins: string | string[];
}

export interface PageRuleOptions {
  /** Names and addresses of the server; `0.0.0.0` and `::` are all addresses. Names of this machine always are. */
  hosts: readonly string[];
  /** Origins of pages that may ask; `*`: all. */
  cors: readonly string[];
}

export function createPageRules({ hosts, cors }: PageRuleOptions): PageRules {
  const known = new Set(hosts.map(normalizeHost));
  const hasAllAddresses = known.has('0.0.0.0') || known.has('::');
  const allowsAll = cors.includes('*');
  return {
    origins: allowsAll ? '*' : [...cors],
    checkHost({ headers, url }) {
      const name = hostnameOf(`http://${headers.get('host') ?? new URL(url).host}`) ?? '';
      // An address cannot be made to point elsewhere.
      if (isLoopback(name) || known.has(name) || (hasAllAddresses && isIP(name) > 0)) return;
      throw forbidden(
        `This server does not answer to the name "${name.slice(0, 200)}": without keys, a web page could use it by that name. ` +
          'Ask it by its address, name the host with --allowed-hosts, or set --api-key.',
        'host_not_allowed',
      );
    },
    checkOrigin({ headers, url }) {
      const origin = headers.get('origin');
      const site = headers.get('sec-fetch-site');
      if (allowsAll || (origin !== null && cors.includes(origin))) return;
      // Browsers send no Sec-Fetch-Site over plain HTTP to another machine. Proxies may drop the port of the host.
      const own = hostnameOf(`http://${headers.get('host') ?? new URL(url).host}`);
      const isForeign = site
        ? site !== 'same-origin' && site !== 'none'
        : origin !== null && hostnameOf(origin) !== own;
      if (isForeign) throw foreignOrigin(origin ?? 'other sites');
    },
  };
}

const forbidden = (message: string, code: string): ApiError => new ApiError(403, message, { code });

/** Also the answer to a preflight. */
const foreignOrigin = (origin: string): ApiError =>
  forbidden(
    `Web pages of ${origin.slice(0, 200)} may not use this server. Start it with --cors ${origin.slice(0, 200)} to allow them.`,
    'origin_not_allowed',
  );

/** The host of a URL, without brackets; undefined if it is none. */
function hostnameOf(url: string): string | undefined {
  return URL.canParse(url) ? normalizeHost(new URL(url).hostname) : undefined;
}

const normalizeHost = (host: string): string => host.toLowerCase().replace(/^\[|\]$|\.$/g, '');

/** Whether a host is this machine. A name that only begins like an address is not. */
export const isLoopback = (host: string): boolean =>
  /^(.+\.)?localhost$/.test(host) || (isIP(host) === 4 ? host.startsWith('127.') : host === '::1');
