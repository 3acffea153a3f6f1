import { createHash } from 'node:crypto';

/** A hash of attention outputs and sealed pages, for tests of equal bits: comparing arrays number by number is slow. */
export function hashOf({
  outputs,
  leaves,
}: {
  outputs: readonly Float32Array[];
  leaves: readonly Uint8Array[];
}): string {
  const hash = createHash('sha256');
  for (const { buffer, byteOffset, byteLength } of [...outputs, ...leaves])
    hash.update(new Uint8Array(buffer, byteOffset, byteLength));
  return hash.digest('hex');
}
