/**
 * Files that tests need but the repository does not carry (models), from `../shared` beside it. Where a file is absent
 * its tests are skipped and say why; under CI they run and fail instead, so that nothing is skipped unseen.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe } from 'vitest';

const shared = new URL('../../shared/', import.meta.url);

/** The path of a shared file, whether it is there or not. */
export const sharedFile = (name: string): string => fileURLToPath(new URL(name, shared));

/** `describe`, for tests that need a shared file; they are given its path. */
export function describeWith(name: string, title: string, suite: (path: string) => void): void {
  const path = sharedFile(name);
  const runs = existsSync(path) || Boolean(process.env.CI);
  describe.skipIf(!runs)(runs ? title : `${title} (skipped: ../shared/${name} is not there)`, () => suite(path));
}

export const smolModel = 'models/SmolLM2-135M-Instruct.Q4_1.gguf';
