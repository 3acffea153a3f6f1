/** Models by their names on the hub, or a mirror of it. */
import { EngineError } from '../engine/engine.ts';
import { findHubFile, HUB, parseHubName } from '../engine/hub.ts';
import { texts } from '../texts/index.ts';
import { openHere } from './connection.ts';
import { change, type Settings, settings } from './settings.ts';

/** Opens a model by its name on the hub, the address of its page there, or any other address of a .gguf file. */
export async function loadNamedModel(name: string, onFound?: () => void): Promise<void> {
  const hub = hubOf(settings.value);
  const hubName = parseHubName(name, hub);
  if (!hubName && !/^(https?:|\.{0,2}\/)/.test(name.trim())) throw new EngineError(texts.models.noName(name));
  const url = hubName ? (await findHubFile(hubName, hub)).url : new URL(name.trim(), document.baseURI).href;
  onFound?.();
  await openHere({ url });
}

/** Without the slash at its end. A path is one on this page's host. */
const hubOf = ({ hub }: Settings): string => (hub ? new URL(hub, document.baseURI).href.replace(/\/+$/, '') : HUB);

/** Where models are found by name; empty: the Hugging Face hub. Throws an error in plain words. */
export function changeHub(text: string): void {
  const hub = text.trim();
  const isAddress = URL.canParse(hub, document.baseURI) && /^(https?:\/\/|\.{0,2}\/)/.test(hub);
  if (hub && !isAddress) throw new EngineError(texts.models.noHub(hub));
  change({ hub: hub || undefined });
}
