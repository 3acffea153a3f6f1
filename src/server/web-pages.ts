/**
 * What web pages may ask. A browser sends requests for any page that is open in it, also to servers that only this machine
 * can reach. Pages of other origins are told from clients by what browsers add to a request, and a page whose name was made
 * to point here (DNS rebinding) by the name in its `Host`.
 */
import { isIP } from 'node:net';
import { InputError } from '../util/errors.ts';
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
  // A port may be given too: `nas.local:8080`.
  const known = new Set(hosts.map(host => hostnameOf(`http://${host}`) ?? normalizeHost(host)));
  const hasAllAddresses = known.has('0.0.0.0') || known.has('::');
  const allowed = cors.map(parseOrigin);
  const allowsAll = allowed.includes('*');
  return {
    origins: allowsAll ? '*' : allowed,
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
      if (allowsAll || (origin !== null && allowed.includes(origin))) return;
      // Browsers send no Sec-Fetch-Site over plain HTTP to another machine. Proxies may drop the port of the host.
      const own = hostnameOf(`http://${headers.get('host') ?? new URL(url).host}`);
      const isForeign = site
        ? site !== 'same-origin' && site !== 'none'
        : origin !== null && hostnameOf(origin) !== own;
      if (isForeign) throw foreignOrigin(origin);
    },
  };
}

/** As browsers write it: without a path, in lower case. */
function parseOrigin(text: string): string {
  const origin = text.toLowerCase().replace(/\/$/, '');
  if (origin === '*' || /^[a-z][\w+.-]*:\/\/[^/?#\s]+$/.test(origin)) return origin;
  throw new InputError(
    `--cors has "${text.slice(0, 200)}", which is not the origin of a web page. Write it as in https://chat.example.com, or * for all.`,
  );
}

const forbidden = (message: string, code: string): ApiError => new ApiError(403, message, { code });

/** Also the answer to a preflight. */
function foreignOrigin(origin: string | null): ApiError {
  // Sandboxed pages and files have the origin `null`, which any page can have.
  const hasName = origin !== null && origin !== 'null';
  const pages = hasName ? `Web pages of ${origin.slice(0, 200)}` : 'Web pages of other origins';
  const help = hasName
    ? `Start it with --cors ${origin.slice(0, 200)} to allow them.`
    : 'Open the page from an origin that --cors names.';
  return forbidden(`${pages} may not use this server. ${help}`, 'origin_not_allowed');
}

/** The host of a URL, without brackets; undefined if it is none. */
function hostnameOf(url: string): string | undefined {
  return URL.canParse(url) ? normalizeHost(new URL(url).hostname) : undefined;
}

const normalizeHost = (host: string): string => host.toLowerCase().replace(/^\[|\]$|\.$/g, '');

/** Whether a host is this machine. A name that only begins like an address is not. */
export const isLoopback = (host: string): boolean =>
  /^(.+\.)?localhost$/.test(host) || (isIP(host) === 4 ? host.startsWith('127.') : host === '::1');
