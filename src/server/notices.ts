/** What of a request is not followed: the client is told in a header of the response, and the log once. */
import type { Logger } from 'pino';
import { toAscii } from './ascii.ts';

export const NOTICE_HEADER = 'x-kvasir-notice';
const MAX_NOTICE = 2000;
const MAX_LOGGED = 1000;

/** A function that notes something about one request, given the headers of its response. */
export type Notify = (id: string, headers: Headers, notice: string) => void;

export function createNotices(logger?: Logger): Notify {
  /** Notices that the log has: clients repeat their tools in every request. */
  const logged = new Set<string>();
  return (id, headers, notice) => {
    const earlier = headers.get(NOTICE_HEADER);
    headers.set(NOTICE_HEADER, toAscii(earlier ? `${earlier} ${notice}` : notice).slice(0, MAX_NOTICE));
    const shown = notice.slice(0, MAX_NOTICE);
    if (logged.has(shown) || logged.size >= MAX_LOGGED) return;
    logged.add(shown);
    logger?.warn({ id }, shown);
  };
}
