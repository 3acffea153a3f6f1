/** The engine in use: opened at the start, and again when the user chooses another device or codec. */
import { signal } from '@preact/signals';
import { type CacheUse, type Engine, EngineError } from '../engine/engine.ts';
import { openServer } from '../engine/server.ts';
import { apiKey } from './settings.ts';

export interface Connection {
  /** `locked`: a key is needed. */
  phase: 'opening' | 'ready' | 'locked' | 'failed';
  engine?: Engine;
  /** What it waits for, or why it has failed. */
  detail?: string;
}

export const connection = signal<Connection>({ phase: 'opening' });
/** Of all conversations; undefined before it is known. */
export const cacheUse = signal<CacheUse | undefined>(undefined);

export async function reconnect(): Promise<void> {
  const { engine: previous } = connection.value;
  connection.value = { phase: 'opening' };
  await previous?.close();
  try {
    const engine = await openServer({
      apiKey: apiKey.read(),
      onWait: detail => {
        connection.value = { phase: 'opening', detail };
      },
    });
    connection.value = { phase: 'ready', engine };
    void refreshCacheUse();
  } catch (error) {
    const isLocked = error instanceof EngineError && error.reason === 'key';
    connection.value = { phase: isLocked ? 'locked' : 'failed', detail: (error as Error).message };
  }
}

export async function unlock(key: string): Promise<void> {
  apiKey.write(key);
  await reconnect();
}

export async function refreshCacheUse(): Promise<void> {
  const { engine } = connection.value;
  cacheUse.value = await engine?.cacheUse().catch(() => undefined);
}
