/** Hashes of structured values. */
import { createSha256, toHex } from './sha256.ts';

/** sha256, in hex, of a value of plain objects, arrays, typed arrays and scalars. Undefined properties do not count. */
export function hashValue(value: unknown): string {
  const hash = createSha256();
  const text = (string: string) => hash.update(new TextEncoder().encode(`${string.length}:${string}`));
  const visit = (part: unknown): void => {
    if (ArrayBuffer.isView(part)) {
      text(`${part.constructor.name} ${part.byteLength}`);
      hash.update(new Uint8Array(part.buffer, part.byteOffset, part.byteLength));
    } else if (typeof part === 'object' && part !== null) {
      const entries = Object.entries(part).filter(([, entry]) => entry !== undefined);
      text(`${Array.isArray(part) ? 'array' : 'object'} ${entries.length}`);
      for (const [name, entry] of entries.sort(([a], [b]) => (a < b ? -1 : 1))) {
        text(name);
        visit(entry);
      }
    } else text(`${typeof part} ${part}`);
  };
  visit(value);
  return toHex(hash.digest());
}
