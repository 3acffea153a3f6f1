/**
 * The signature of a session: an HMAC-SHA256 over its records, with a secret of this installation. A checksum finds damage,
 * but anybody can compute one. Only a signature says that pages were computed here, so that others may share them.
 */
import type { CacheRecord } from '../store/record.ts';

export const SIGNATURE_BYTES = 32;

/** Signs one session. */
export interface Signer {
  /** Adds the next record. */
  add(record: CacheRecord): void;
  digest(): Uint8Array;
}

export function createSigner({ createHmac }: typeof import('node:crypto'), secret: Uint8Array): Signer {
  const hmac = createHmac('sha256', secret);
  return {
    add({ kind, key, payload }) {
      hmac.update(`${kind} ${payload.length} `).update(key).update(payload);
    },
    digest: () => new Uint8Array(hmac.digest()),
  };
}

/** Takes the same time whatever differs. */
export const isSameSignature = (a: Uint8Array, b: Uint8Array): boolean =>
  a.length === b.length && a.reduce((difference, byte, i) => difference | (byte ^ b[i]), 0) === 0;
