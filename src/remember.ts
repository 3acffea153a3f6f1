/** The known value of a key, or a new one, which is then known. Beyond `max`, the least recently used is forgotten. */
export function remember<T>(known: Map<string, T>, key: string, create: () => T, max: number): T {
  const value = known.get(key) ?? create();
  known.delete(key);
  known.set(key, value);
  const [oldest] = known.keys();
  if (known.size > max) known.delete(oldest);
  return value;
}
