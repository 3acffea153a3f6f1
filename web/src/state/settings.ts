/** What the user has chosen, kept in localStorage; the API key of a server only for this tab. */
import { effect, signal } from '@preact/signals';
import { DEFAULT_CACHE } from '../engine/codecs.ts';

export type Theme = 'auto' | 'light' | 'dark';

export interface Settings {
  theme: Theme;
  /** Where the model runs: on the server that serves this page, or in this browser. */
  place: 'server' | 'browser';
  /** In this browser: `wasm` or `webgpu`, and the preset or codec of the cache. */
  device: string;
  codec: string;
  /** In this browser: the model's address; its path in the storage; or the name of a file that is not stored. Default: Mimir. */
  model?: { url: string } | { path: string } | { fileName: string };
  /** Where models are found by name: the address of a mirror. Default: the Hugging Face hub. */
  hub?: string;
  /** Whether there was no server where this page comes from. */
  isStaticHost?: boolean;
  temperature: number;
  /** Only the likeliest tokens that are this likely together; 1: all. */
  topP: number;
  /** Makes tokens less likely that came before; 1: no. */
  repetitionPenalty: number;
  /** With the same one, the same question gets the same answer. Default: another one each time. */
  seed?: number;
  /** Tokens of an answer; 0: as many as fit. */
  maxTokens: number;
  /** Whether the model reasons before it answers. Default: as its chat template does. */
  thinks?: boolean;
  /** What the model is told before each conversation; may be empty. */
  system: string;
}

/** Settings of answers that go together. */
export const STYLES = {
  exact: { temperature: 0, topP: 1 },
  balanced: { temperature: 0.3, topP: 1 },
  varied: { temperature: 0.9, topP: 0.95 },
};

export type Style = keyof typeof STYLES;

const KEY = 'kvasir.settings';
const API_KEY = 'kvasir.apiKey';

const defaults: Settings = {
  ...{ theme: 'auto', place: 'server', device: 'wasm', codec: DEFAULT_CACHE },
  ...{ ...STYLES.balanced, repetitionPenalty: 1, maxTokens: 4096, system: '' },
};

/** What has been changed, by any tab. */
function readChanged(): Partial<Settings> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? '{}');
  } catch {
    return {};
  }
}

export const settings = signal<Settings>({ ...defaults, ...readChanged() });

export const change = (changed: Partial<Settings>): void => {
  settings.value = { ...settings.value, ...changed };
  // Other tabs may have changed other settings.
  localStorage.setItem(KEY, JSON.stringify({ ...readChanged(), ...changed }));
};

addEventListener('storage', ({ key }) => {
  if (key !== KEY) return;
  // What runs is each tab's own.
  const { place, device, codec, model } = settings.value;
  settings.value = { ...defaults, ...readChanged(), place, device, codec, model };
});

effect(() => {
  document.documentElement.dataset.theme = settings.value.theme;
});

export const apiKey = {
  read: (): string | undefined => sessionStorage.getItem(API_KEY) ?? undefined,
  write: (key: string): void => sessionStorage.setItem(API_KEY, key),
};
