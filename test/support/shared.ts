/**
 * Files that tests need but the repository does not contain (models), from `../shared`. Without the file its tests are
 * skipped with the reason; under CI they fail instead.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe } from 'vitest';

const shared = new URL('../../../shared/', import.meta.url);

/** The path of a shared file, whether it exists or not. */
export const sharedFile = (name: string): string => fileURLToPath(new URL(name, shared));

/** `describe` for tests that need a shared file; they get its path. */
export function describeWithFile(name: string, title: string, suite: (path: string) => void): void {
  const path = sharedFile(name);
  const runs = existsSync(path) || Boolean(process.env.CI);
  describe.skipIf(!runs)(runs ? title : `${title} (skipped: ../shared/${name} does not exist)`, () => suite(path));
}

export const smolModel = 'models/SmolLM2-135M-Instruct.Q4_1.gguf';
