/**
 * Files of llama.cpp's repository: node-llama-cpp's package has it as a git bundle, in the version that its binaries are
 * built of.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const bundle = fileURLToPath(new URL('../../node_modules/node-llama-cpp/llama/gitRelease.bundle', import.meta.url));

/** Writes a folder of the repository to a temporary one, whose path is returned. */
export function checkOutOfLlamaCpp(folder: string): string {
  const clone = mkdtempSync(join(tmpdir(), 'kvasir-llama-cpp-'));
  execFileSync('git', ['clone', '--quiet', '--no-checkout', bundle, clone]);
  execFileSync('git', ['-C', clone, 'checkout', '--quiet', 'HEAD', '--', folder]);
  return join(clone, folder);
}
