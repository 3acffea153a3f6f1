/**
 * The error family: what a caller did or gave that cannot work. Each message says what was wrong and what to do.
 * A bug of our own is a plain Error from `assert`, never one of these.
 */
export class KvasirError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A spec string that cannot be parsed, or asks for something impossible. */
export class SpecError extends KvasirError {}

/** A shape (head dimension, heads, page size, array length) that does not fit. */
export class ShapeError extends KvasirError {}

/** Values that cannot be stored: NaN or Infinity, a number out of range. */
export class InputError extends KvasirError {}

/** Bytes of a file, page or message that are truncated, damaged or hostile. */
export class FormatError extends KvasirError {}

/** Something real that this version does not do: an unknown architecture, a missing device or profile. */
export class UnsupportedError extends KvasirError {}

/** Too little memory, disk or context for what was asked. */
export class CapacityError extends KvasirError {}

/** A device that worked and then failed or went away. */
export class DeviceError extends KvasirError {}

/** The network failed, or a server refused: not there, not allowed, too many requests. */
export class NetworkError extends KvasirError {}

export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(`kvasir bug: ${message}`);
}
