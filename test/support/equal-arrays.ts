/**
 * Typed arrays with the same bytes are equal: vitest would compare them element by element, by way of their keys. Those that
 * differ it still compares itself, and reports how.
 */
import { expect } from 'vitest';

const bytesOf = (x: unknown) => (ArrayBuffer.isView(x) ? Buffer.from(x.buffer, x.byteOffset, x.byteLength) : undefined);

expect.addEqualityTesters([
  (a, b) => {
    const [left, right] = [bytesOf(a), bytesOf(b)];
    if (!left || !right || Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return undefined;
    return left.equals(right) || undefined;
  },
]);
