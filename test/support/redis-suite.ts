/** Suites that need redis-server. Without it they are skipped with the reason; under CI they fail instead. */
import { describe } from 'vitest';
import { noRedis } from './redis-server.ts';

export function describeWithRedis(title: string, suite: () => void): void {
  const runs = !noRedis || Boolean(process.env.CI);
  describe.skipIf(!runs)(runs ? title : `${title} (skipped: ${noRedis})`, suite);
}
