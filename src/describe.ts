/** What a caller gave, in a few words, for the error message that refuses it. */
export function describe(value: unknown): string {
  if (typeof value === 'string') return `the text ${JSON.stringify(shorten(value))}`;
  if (typeof value === 'number' || typeof value === 'boolean') return `the ${typeof value} ${value}`;
  if (value === null || value === undefined) return String(value);
  if (typeof value !== 'object') return `a ${typeof value}`;
  if (Array.isArray(value)) return value.length === 0 ? 'an empty array' : `an array of ${value.length}`;
  if (kindOf(value) === 'Promise') return 'a Promise (await it first)';
  if (!isPlainObject(value)) return `${/^[AEIO]/.test(kindOf(value)) ? 'an' : 'a'} ${kindOf(value)}`;
  const keys = Object.keys(value);
  return keys.length === 0 ? 'an empty object' : `an object with the keys ${shorten(keys.join(', '))}`;
}

/** `Blob`, `URL`, `Uint8Array`: the class of an object, whichever page, frame or worker it was made in. */
export function kindOf(value: object): string {
  const tag = Object.prototype.toString.call(value).slice(8, -1);
  return tag === 'Object' ? (value.constructor?.name ?? tag) : tag;
}

/** Made by `{}`: not of a class, whose data may hide anywhere. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

const shorten = (text: string): string => (text.length > 60 ? `${text.slice(0, 60)}...` : text);
