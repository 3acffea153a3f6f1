/** Parts of the app that are loaded when they are first needed, so that the page opens without them. */
import { signal } from '@preact/signals';

/**
 * A function that returns a module, or undefined until it is loaded. The first call starts to load it; components that
 * have called it are rendered again when it is there. Without a network it stays undefined.
 */
export function createLate<T>(load: () => Promise<T>): () => T | undefined {
  const loaded = signal<T | undefined>(undefined);
  let isStarted = false;
  const start = async () => {
    isStarted = true;
    loaded.value = await load().catch(() => undefined);
  };
  return () => {
    if (!isStarted) void start();
    return loaded.value;
  };
}
