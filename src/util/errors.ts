/** How options are called where a message is read: `maxTokens` is `--max-tokens` in the CLI. With a value: `kv: 'tq4'`. */
export type OptionNames = (option: string, value?: string) => string;

/** A message; a function if it names options. */
export type Wording = string | ((option: OptionNames) => string);

const libraryName: OptionNames = (option, value) => (value === undefined ? option : `${option}: '${value}'`);

const wordFor = (wording: Wording, names: OptionNames): string =>
  typeof wording === 'string' ? wording : wording(names);

/**
 * The base class of all errors that Kvasir throws on purpose. Each message says what is wrong and what to do. A bug in
 * Kvasir is a plain Error, never one of these.
 */
export class KvasirError extends Error {
  /** Written out, since minifiers rename classes. */
  static override readonly name: string = 'KvasirError';

  /** The option that is wrong: `maxTokens`, or a part of one: `tools[0].function.parameters`. */
  readonly option?: string;
  readonly #wording: Wording;

  constructor(wording: Wording, { option, ...options }: ErrorOptions & { option?: string } = {}) {
    super(wordFor(wording, libraryName), options);
    this.name = new.target.name;
    this.#wording = wording;
    if (option !== undefined) this.option = option;
  }

  /** The message with other names of options, such as the flags of a command line. */
  describe(names: OptionNames): string {
    return wordFor(this.#wording, names);
  }
}

/** A spec string that cannot be parsed, or that describes an impossible codec. */
export class SpecError extends KvasirError {
  static override readonly name: string = 'SpecError';
}

/** A head dimension, head count, page size or array length that is not supported or does not match. */
export class ShapeError extends KvasirError {
  static override readonly name: string = 'ShapeError';
}

/** An invalid argument: a wrong type, an unknown option, a number out of range, NaN. */
export class InputError extends KvasirError {
  static override readonly name: string = 'InputError';
}

/** An InputError that begins with the name of the option that is wrong. */
export const optionError = (option: string, problem: string): InputError =>
  new InputError(nameOf => `${nameOf(option)} ${problem}`, { option });

/** A file, page or message that is truncated, damaged or malicious. */
export class FormatError extends KvasirError {
  static override readonly name: string = 'FormatError';
}

/** Something that this version or machine does not support: an architecture, a device, a codec without a profile. */
export class UnsupportedError extends KvasirError {
  static override readonly name: string = 'UnsupportedError';
}

/** Not enough memory, disk or context. */
export class CapacityError extends KvasirError {
  static override readonly name: string = 'CapacityError';
}

/** A prompt that is too long for the context, or for the whole cache: it fails whenever it is sent. */
export class ContextError extends CapacityError {
  static override readonly name: string = 'ContextError';
}

/** A codec that does not suit the model: what it would answer is not to be trusted. */
export class QualityError extends KvasirError {
  static override readonly name: string = 'QualityError';
}

/** A device that failed or was lost after it had been opened. */
export class DeviceError extends KvasirError {
  static override readonly name: string = 'DeviceError';
}

/** The network failed, or the server refused the request: not found, not allowed, too many requests. */
export class NetworkError extends KvasirError {
  static override readonly name: string = 'NetworkError';
}

export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(`kvasir bug: ${message}`);
}
