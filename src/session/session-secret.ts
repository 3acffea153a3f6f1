/** The secret with which this installation signs its sessions: a file in Kvasir's cache folder that only its user can read. */

import { kvasirCacheDir } from '../plan/profile-store.ts';
import { platform } from '../platform/node.ts';
import { createSigner, type Signer } from './session-signature.ts';

const FILE = 'session-key';
const SECRET_BYTES = 32;

/** Undefined in browsers, and where no secret can be stored: then nothing is signed, and no signature is recognized. */
export async function openSigner(): Promise<Signer | undefined> {
  if (platform.baseUrl !== undefined) return undefined;
  const secret = await readSecret().catch(() => undefined);
  return secret?.length === SECRET_BYTES ? createSigner(platform.node.crypto, secret) : undefined;
}

/** Made on first use. */
async function readSecret(): Promise<Uint8Array> {
  const { link, mkdir, readFile, rm, writeFile } = platform.node.fs.promises;
  const folder = await kvasirCacheDir();
  const path = platform.node.path.join(folder, FILE);
  const known = await readFile(path).catch(() => undefined);
  if (known) return known;
  await mkdir(folder, { recursive: true });
  const temporary = `${path}.${crypto.randomUUID()}`;
  await writeFile(temporary, crypto.getRandomValues(new Uint8Array(SECRET_BYTES)), { mode: 0o600, flag: 'wx' });
  try {
    // Appears whole, and never replaces that of another process.
    await link(temporary, path).catch(() => {});
  } finally {
    await rm(temporary);
  }
  return readFile(path);
}
