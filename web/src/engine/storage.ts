/** What this site has stored in the browser: models, and the caches of conversations. */
import { deleteStored, listStored, openStored } from 'kvasir/worker';

export interface StoredModel {
  name: string;
  /** For `deleteStoredFiles`. */
  folder: string;
  /** For `openStoredModel`. */
  path: string;
  bytes: number;
  /** Where it comes from: an address, or a file that was chosen. */
  source?: string;
  /** Not while its download was interrupted. */
  isComplete: boolean;
}

export interface Storage {
  models: readonly StoredModel[];
  /** Bytes of the caches, and how many there are. */
  caches: { count: number; bytes: number };
  /** All that the site uses, of what the browser allows. */
  usage: number;
  quota: number;
}

/** Not on a page without https, such as that of a server in the same network. */
export const canStore = typeof navigator.storage?.getDirectory === 'function';

export async function readStorage(): Promise<Storage> {
  const { files, usage, quota } = await listStored();
  const caches = files.filter(({ path }) => path.startsWith('sessions/'));
  const models = files.flatMap(({ path, bytes }) => {
    const [folder, id, name] = path.split('/');
    return folder === 'models' && name !== 'info.json' ? [{ name: name!, folder: `models/${id}`, path, bytes }] : [];
  });
  return {
    models: await Promise.all(
      models.map(async model => {
        const { source, bytes } = await readInfo(model.folder);
        return { ...model, source, isComplete: bytes === model.bytes };
      }),
    ),
    caches: { count: caches.length, bytes: caches.reduce((sum, { bytes }) => sum + bytes, 0) },
    usage,
    quota,
  };
}

/** Beside a model there is a file that says where it comes from, and how large it is. */
async function readInfo(folder: string): Promise<{ source?: string; bytes?: number }> {
  try {
    return JSON.parse(await (await openStored(`${folder}/info.json`)).text());
  } catch {
    return {};
  }
}

/** Where a stored model comes from. */
export const readSource = async (path: string): Promise<string | undefined> =>
  (await readInfo(path.slice(0, path.lastIndexOf('/')))).source;

/** Whether all of the model of an address is stored. */
export async function isStored(source: string): Promise<boolean> {
  const { models } = await readStorage().catch(() => ({ models: [] }));
  return models.some(model => model.isComplete && model.source === source);
}

/** A model that was stored before. */
export const openStoredModel = (path: string): Promise<File> => openStored(path);

/** The path of a file that was stored as a model. Another one may have its name and size. */
export async function findStoredModel({ name, size, lastModified }: File): Promise<string | undefined> {
  const source = `${name} ${size} ${lastModified}`;
  return (await readStorage()).models.find(model => model.isComplete && model.source === source)?.path;
}

/** Models and caches; or what is at a path. Conversations are elsewhere. */
export async function deleteStoredFiles(path?: string): Promise<void> {
  if (canStore) await deleteStored(path);
}
