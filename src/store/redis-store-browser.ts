/** Takes the place of redis-store.ts in browsers, which cannot connect to Redis. */
import { UnsupportedError } from '../util/errors.ts';

export const openRedisStore: typeof import('./redis-store.ts').openRedisStore = async () => {
  throw new UnsupportedError('A redis tier needs Node. In a browser, use an opfs tier.');
};
