/** The engine in use: opened at the start, and again when the user chooses another place, device or codec. */
import { computed, signal } from '@preact/signals';
import { openBrowser } from '../engine/browser.ts';
import { cachesFor, DEFAULT_CACHE } from '../engine/codecs.ts';
import { type CacheUse, type Engine, EngineError } from '../engine/engine.ts';
import { openServer } from '../engine/server.ts';
import { apiKey, change, type Settings, settings } from './settings.ts';

export interface Connection {
  /** `locked`: a key is needed. */
  phase: 'opening' | 'ready' | 'locked' | 'failed';
  /** Where the engine runs; without a server, in the browser. */
  place: Settings['place'];
  engine?: Engine;
  /** What it waits for, or why it has failed. */
  detail?: string;
  /** 0 to 1, while a model is loaded. */
  progress?: number;
}

export const connection = signal<Connection>({ phase: 'opening', place: 'server' });
/** Whether a server serves this page; false if it is a static host. */
export const hasServer = signal(true);
/** A file that the user has chosen as the model of this browser, until the page is left. */
export const modelFile = signal<File | undefined>(undefined);
/** The model of this browser; undefined: Mimir. */
export const browserModel = computed(() => modelFile.value ?? settings.value.modelUrl);
/** Of all conversations; undefined before it is known. */
export const cacheUse = signal<CacheUse | undefined>(undefined);

/** Counts attempts: only the last one counts. */
let attempts = 0;

/** Opens the engine of the settings, and closes the one before. */
export async function reconnect(): Promise<void> {
  const attempt = ++attempts;
  const { engine: previous } = connection.value;
  const show = (changed: Omit<Connection, 'place'>) => {
    if (attempt === attempts) connection.value = { ...changed, place };
  };
  let { place } = settings.value;
  show({ phase: 'opening' });
  await previous?.close();
  try {
    let engine: Engine | undefined;
    if (place === 'server')
      try {
        engine = await openServer({
          apiKey: apiKey.read(),
          onWait: detail => show({ phase: 'opening', detail: `The server is ${detail}` }),
        });
      } catch (error) {
        if (!(error instanceof EngineError) || error.reason !== 'absent') throw error;
        hasServer.value = false;
        place = 'browser';
      }
    engine ??= await openBrowser({
      ...{ model: browserModel.value, device: settings.value.device, codec: settings.value.codec },
      onProgress: (done, total) => show({ phase: 'opening', detail: 'Loading the model', progress: done / total }),
    });
    if (attempt !== attempts) return await engine.close();
    show({ phase: 'ready', engine });
    void refreshCacheUse();
    void engine.ended.then(({ message }) => {
      if (connection.value.engine !== engine) return;
      show({ phase: 'failed', detail: message });
      void engine.close();
    });
  } catch (error) {
    const isLocked = error instanceof EngineError && error.reason === 'key';
    show({ phase: isLocked ? 'locked' : 'failed', detail: (error as Error).message });
  }
}

/** Changes settings, and opens the engine that they name. */
export async function use(changed: Partial<Settings>): Promise<void> {
  change(changed);
  await reconnect();
}

/** Opens a model in this browser; undefined: Mimir. */
export function useModel(model: File | string | undefined): Promise<void> {
  modelFile.value = model instanceof File ? model : undefined;
  const hasCodec = cachesFor(!model).some(({ name }) => name === settings.value.codec);
  return use({ modelUrl: typeof model === 'string' ? model : undefined, ...(!hasCodec && { codec: DEFAULT_CACHE }) });
}

export async function unlock(key: string): Promise<void> {
  apiKey.write(key);
  await reconnect();
}

export async function refreshCacheUse(): Promise<void> {
  const { engine } = connection.value;
  cacheUse.value = await engine?.cacheUse().catch(() => undefined);
}
