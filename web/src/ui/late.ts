/** Parts of the app that are loaded when they are first needed, so that the page opens without them. */
import { type ReadonlySignal, signal } from '@preact/signals';

export interface Late<T> {
  /**
   * The module, or undefined until it is loaded. The first call starts to load it; components that have called it are
   * rendered again when it is there.
   */
  (): T | undefined;
  /** Without a network, or after the app was updated: its files have other names then. */
  readonly hasFailed: ReadonlySignal<boolean>;
  retry(): void;
}

export function createLate<T>(load: () => Promise<T>): Late<T> {
  const loaded = signal<T | undefined>(undefined);
  const hasFailed = signal(false);
  let isStarted = false;
  const start = () => {
    isStarted = true;
    load().then(
      module => {
        loaded.value = module;
      },
      () => {
        hasFailed.value = true;
      },
    );
  };
  const read = () => {
    if (!isStarted) start();
    return loaded.value;
  };
  return Object.assign(read, { hasFailed, retry: start });
}
