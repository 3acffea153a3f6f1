/** Describes a rejected value in a few words, for an error message. */
export function describeValue(value: unknown): string {
  if (typeof value === 'string') return `the string ${JSON.stringify(shorten(value))}`;
  if (typeof value === 'number' || typeof value === 'boolean') return `the ${typeof value} ${value}`;
  if (value === null || value === undefined) return String(value);
  if (typeof value !== 'object') return `a ${typeof value}`;
  if (Array.isArray(value)) return value.length === 0 ? 'an empty array' : `an array of ${value.length}`;
  if (className(value) === 'Promise') return 'a Promise (await it first)';
  if (!isPlainObject(value)) return `${/^[AEIO]/.test(className(value)) ? 'an' : 'a'} ${className(value)}`;
  const keys = Object.keys(value);
  return keys.length === 0 ? 'an empty object' : `an object with the keys ${shorten(keys.join(', '))}`;
}

/** The class name of an object, such as `Blob` or `Uint8Array`; also for objects of another frame or worker. */
export function className(value: object): string {
  const tag = Object.prototype.toString.call(value).slice(8, -1);
  return tag === 'Object' ? (value.constructor?.name ?? tag) : tag;
}

/** Whether a value is an object literal, not an instance of a class. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

const shorten = (text: string): string => (text.length > 60 ? `${text.slice(0, 60)}...` : text);
