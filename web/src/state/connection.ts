/** The engine in use: opened at the start, and again when the user chooses another place, device or codec. */
import { computed, signal } from '@preact/signals';
import { type BrowserModel, type BrowserOptions, openBrowser } from '../engine/browser.ts';
import { cachesFor, DEFAULT_CACHE } from '../engine/codecs.ts';
import { type CacheUse, type Engine, EngineError, type LoadProgress } from '../engine/engine.ts';
import { findKeptProfile, findProfile, keepProfile } from '../engine/profiles.ts';
import { openServer } from '../engine/server.ts';
import { canStore, findStoredModel, isStored, type StoredModel } from '../engine/storage.ts';
import { texts } from '../texts/index.ts';
import { announcement, refuse } from './notice.ts';
import { apiKey, change, type Settings, settings } from './settings.ts';

export interface Connection {
  /** `locked`: a key is needed. `lost`: the server does not answer, and is asked again and again. */
  phase: 'opening' | 'ready' | 'locked' | 'lost' | 'failed';
  /** Where the engine runs; without a server, in the browser. */
  place: Settings['place'];
  /** While another model is downloaded, the one before. */
  engine?: Engine;
  /** What it waits for, or why it has failed. */
  detail?: string;
  /** While a model is loaded. */
  progress?: Progress;
}

export interface Progress extends LoadProgress {
  /** Once it can be told. */
  secondsLeft?: number;
}

export const connection = signal<Connection>({ phase: 'opening', place: 'server' });
/** Whether a server serves this page; false if it is a static host. */
export const hasServer = computed(() => !settings.value.isStaticHost);

const savedModel = () => {
  const { model } = settings.value;
  return model && !('fileName' in model) ? model : undefined;
};

/** The model of this browser; undefined: Mimir. */
export const browserModel = signal<BrowserModel | undefined>(savedModel());
/** Its profile, if there is one. Mimir's comes with it. */
export const browserProfile = signal<Blob | undefined>(undefined);
/** Whether the model of this browser can have calibrated codecs. */
export const hasProfile = computed(() => browserModel.value === undefined || browserProfile.value !== undefined);
// A comparison runs in this browser, also while a server answers.
void (browserModel.value && findKeptProfile(browserModel.value))?.then(kept => {
  browserProfile.value ??= kept;
});
/** A file that was the model before the page was left. */
export const missingFile = computed(() => {
  const { model } = settings.value;
  return !browserModel.value && model && 'fileName' in model ? model.fileName : undefined;
});
/** Of all conversations; undefined before it is known. */
export const cacheUse = signal<CacheUse | undefined>(undefined);

/** Counts attempts: only the last one counts, and stops the one before. */
let attempts = 0;
let opening: AbortController | undefined;

/** Milliseconds before a server that is lost is asked again: more each time. */
const MIN_PAUSE_MS = 1000;
const MAX_PAUSE_MS = 30_000;

/** Opens the engine of the settings, and closes the one before; of a model that is downloaded, when it is all there. */
export const reconnect = (): Promise<void> => connect(++attempts);

/** `losses`: how often in a row the server did not answer. */
async function connect(attempt: number, losses = 0): Promise<void> {
  let { place } = settings.value;
  const isLast = () => attempt === attempts;
  /** With the engine before, as long as it is not closed. */
  const show = (changed: Omit<Connection, 'place'>) => {
    if (isLast()) connection.value = { engine: connection.value.engine, ...changed, place };
  };
  const fail = (error: Error) => {
    const reason = error instanceof EngineError ? error.reason : 'failed';
    show({ phase: reason === 'key' ? 'locked' : reason === 'lost' ? 'lost' : 'failed', detail: error.message });
    if (reason === 'lost')
      setTimeout(() => isLast() && connect(attempt, losses + 1), Math.min(MAX_PAUSE_MS, MIN_PAUSE_MS * 2 ** losses));
  };
  /** Memory is for one model at a time. */
  const closePrevious = async () => {
    const { engine, ...rest } = connection.value;
    if (!engine || !isLast()) return;
    connection.value = rest;
    await engine.close();
  };
  opening?.abort();
  opening = new AbortController();
  const { signal } = opening;
  // What is said of a lost server stays until it is back.
  if (losses === 0) show({ phase: 'opening' });
  if (!(await isDownload(place))) await closePrevious();
  if (!isLast()) return;
  try {
    let engine: Engine | undefined;
    if (place === 'server') {
      engine = await findServer(detail => show({ phase: 'opening', detail }));
      if (!engine) place = 'browser';
    }
    const timed = createTimer();
    const onProgress = (progress: LoadProgress) => {
      const isThere = progress.phase !== 'fetch' || progress.done === progress.total;
      if (isThere) void closePrevious();
      show({ phase: 'opening', detail: describeLoading(progress), progress: timed(progress) });
    };
    engine ??= await openModel({ onProgress, signal });
    await closePrevious();
    if (!isLast()) return await engine.close();
    show({ phase: 'ready', engine });
    lastGood = inUse(place);
    if (losses > 0) announcement.value = texts.connection.serverBack;
    void refreshCacheUse();
    void engine.ended.then(error => {
      if (connection.value.engine !== engine) return;
      const { engine: _, ...rest } = connection.value;
      connection.value = rest;
      fail(error);
      void engine.close();
    });
  } catch (error) {
    fail(error as Error);
  }
}

const describeLoading = ({ phase }: LoadProgress): string =>
  phase === 'fetch' ? texts.connection.downloading : texts.connection.loading;

/** Seconds that are left of a phase, by its speed so far. */
function createTimer() {
  let begun: { phase: string; at: number; done: number } | undefined;
  return (progress: LoadProgress): Progress => {
    const { phase, done, total } = progress;
    if (begun?.phase !== phase) begun = { phase, at: performance.now(), done };
    const seconds = (performance.now() - begun.at) / 1000;
    const rate = (done - begun.done) / seconds;
    return seconds > MIN_SECONDS && rate > 0 ? { ...progress, secondsLeft: (total - done) / rate } : progress;
  };
}

/** Before, the speed is not known. */
const MIN_SECONDS = 1;

/** Whether the model is one that will be stored first. */
async function isDownload(place: Settings['place']): Promise<boolean> {
  const model = browserModel.value;
  if (place === 'server' || !canStore || !model || !('url' in model)) return false;
  return !(await isStored(new URL(model.url, document.baseURI).href));
}

/** Undefined: there is none where this page comes from. */
async function findServer(onWait: (detail: string) => void): Promise<Engine | undefined> {
  try {
    const engine = await openServer({
      apiKey: apiKey.read(),
      onWait: detail => onWait(texts.connection.serverIs(detail)),
    });
    if (!hasServer.value) change({ isStaticHost: false });
    return engine;
  } catch (error) {
    const reason = error instanceof EngineError ? error.reason : 'failed';
    if (reason === 'absent') change({ isStaticHost: true });
    // Without a network a static host does not answer either.
    if (reason === 'absent' || (reason === 'lost' && !hasServer.value)) return undefined;
    throw error;
  }
}

const inUse = (place: Settings['place']) => ({
  ...{ place, model: browserModel.value, profile: browserProfile.value },
  saved: { ...settings.value },
});

/** What ran before a change, and as it is saved: a model that turns out not to run is not opened again after a reload. */
let lastGood = inUse('server');

type Loading = Pick<BrowserOptions, 'onProgress' | 'signal'>;

async function openModel(options: Loading): Promise<Engine> {
  if (missingFile.value !== undefined) throw new EngineError(texts.connection.fileGone(missingFile.value));
  const model = browserModel.value;
  const profile = model && (await findProfile(model, options.signal));
  const engine = await openWithProfile(model, profile, options).catch(error => {
    if (error instanceof EngineError && error.reason === 'model') change({ model: lastGood.saved.model });
    throw error;
  });
  const path = model && 'file' in model && model.isKept ? await findStoredModel(model.file) : undefined;
  if (path) {
    browserModel.value = { path };
    change({ model: { path } });
  }
  return engine;
}

/** Opens a model with its profile; if that is of another model, or damaged, without it. */
async function openWithProfile(
  model: BrowserModel | undefined,
  profile: Blob | undefined,
  options: Loading,
): Promise<Engine> {
  const open = (used?: Blob) => {
    browserProfile.value = used;
    const isOffered = cachesFor(hasProfile.value).some(({ name }) => name === settings.value.codec);
    if (!isOffered) change({ codec: DEFAULT_CACHE });
    const { device, codec } = settings.value;
    return openBrowser({ model, profile: used, device, codec, ...options });
  };
  try {
    const engine = await open(profile);
    if (model && profile) await keepProfile(model, profile);
    return engine;
  } catch (error) {
    if (!profile || !(error instanceof EngineError) || error.reason !== 'model') throw error;
    const engine = await open();
    refuse(texts.connection.profileNotUsed(error.message));
    return engine;
  }
}

/** Changes settings, and opens the engine that they name. */
export async function use(changed: Partial<Settings>): Promise<void> {
  change(changed);
  await reconnect();
}

/** Opens a model in this browser; undefined: Mimir. */
export function useModel(model: BrowserModel | undefined): Promise<void> {
  browserModel.value = model;
  return use({ model: model && savedFormOf(model) });
}

function savedFormOf(model: BrowserModel): Settings['model'] {
  if ('file' in model) return { fileName: model.file.name };
  return 'url' in model ? { url: model.url } : { path: model.path };
}

/** Opens a model in this browser, which answers from now on. */
export function openHere(model: BrowserModel): Promise<void> {
  const { device } = settings.value;
  change({ place: 'browser', device: device === 'auto' ? 'wasm' : device });
  return useModel(model);
}

/** Opens files as the model of this browser: a model, its profile, or both. A profile alone is for the model in use. */
export function openModelFiles(files: readonly File[]): Promise<void> {
  const file = files.find(isModelFile);
  const profile = files.find(isProfileFile);
  const model = file ? { file } : browserModel.value;
  if (!model) {
    refuse(texts.connection.mimirHasProfile);
    return Promise.resolve();
  }
  return openHere({ ...model, ...(profile && { profile }) });
}

export const isModelFile = ({ name }: File): boolean => /\.gguf$/i.test(name);
export const isProfileFile = ({ name }: File): boolean => /\.kvprofile$/i.test(name);

/** Goes back to the model before. A download that has begun goes on when its model is loaded again. */
export function stopLoading(): Promise<void> {
  const { engine } = connection.value;
  browserModel.value = lastGood.model;
  const { model, place, device, codec } = lastGood.saved;
  if (!engine) return use({ model });
  // It was not closed yet.
  attempts++;
  opening?.abort();
  browserProfile.value = lastGood.profile;
  change({ model, place, device, codec });
  connection.value = { phase: 'ready', place: lastGood.place, engine };
  return Promise.resolve();
}

/** A stored model that was deleted is not downloaded again: the next start is with Mimir. Default: all are deleted. */
export function forgetModel(stored?: Pick<StoredModel, 'path' | 'source'>): void {
  const { model } = settings.value;
  if (!model || 'fileName' in model) return;
  const isIt = !stored || ('path' in model ? model.path === stored.path : model.url === stored.source);
  if (!isIt) return;
  browserModel.value = undefined;
  browserProfile.value = undefined;
  change({ model: undefined });
  lastGood = inUse(lastGood.place);
}

export async function unlock(key: string): Promise<void> {
  apiKey.write(key);
  await reconnect();
}

export async function refreshCacheUse(): Promise<void> {
  const { engine } = connection.value;
  cacheUse.value = await engine?.cacheUse().catch(() => undefined);
}
