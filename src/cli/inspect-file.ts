/** Opens what `kvasir inspect` shows: a model on this machine, or the headers of one on the hub. */
import { type ModelFile, readModelFile } from '../engine/engine.ts';
import { NotDownloadedError } from '../hub/resolve.ts';
import { type OpenedModel, openModel } from '../model/input.ts';
import { openHubModel } from '../plan/pull.ts';

export interface InspectedFile extends ModelFile {
  isDownloaded: boolean;
}

/** `context`: max tokens per sequence that the model would be loaded with. */
export async function openInspectedFile(model: string, context?: number): Promise<InspectedFile> {
  const local = await openModel(model).catch((error): undefined => {
    if (!(error instanceof NotDownloadedError)) throw error;
  });
  const opened: OpenedModel = local ?? { gguf: await openHubModel(model, { onMessage: console.error }), paths: [] };
  return { ...(await readModelFile(opened, { context })), isDownloaded: local !== undefined };
}
