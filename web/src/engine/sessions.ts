/** The caches of conversations in a Worker, saved in the site's storage: after a reload nothing is read again. */
import type { RemoteService } from 'kvasir/worker';
import { cachePath, deleteCaches, limitCaches, saveWithRoom } from './caches.ts';
import { canStore, deleteStoredFiles } from './storage.ts';

/** Conversations that stay in memory; others are restored when they are asked again. */
export const MAX_OPEN = 4;

export interface Sessions {
  /** The slot of a conversation, restored if it was saved. */
  slotOf(conversation: string): Promise<number>;
  save(conversation: string): Promise<void>;
}

/** Conversations that were deleted: an answer that was still running must not save them again. */
const deleted = new Set<string>();

/** What is being saved: its slot cannot be used, and its file not deleted before. */
let saving: Promise<unknown> = Promise.resolve();

export function createSessions(service: RemoteService): Sessions {
  /** Slots by conversation, the one that was used last at the end. */
  const open = new Map<string, number>();

  /** One conversation after the other gets its slot, so that no two get the same. */
  let choosing: Promise<unknown> = Promise.resolve();

  const freeSlot = async (): Promise<number> => {
    const used = new Set(open.values());
    const free = Array.from({ length: MAX_OPEN }, (_, slot) => slot).find(slot => !used.has(slot));
    if (free !== undefined) return free;
    const states = await service.slots();
    const isIdle = (slot: number) => !states.some(state => state.slot === slot && state.busy);
    const [oldest, slot] = [...open].find(([, slot]) => isIdle(slot))!;
    open.delete(oldest);
    await service.eraseSlot(slot);
    return slot;
  };

  return {
    slotOf(conversation) {
      const choose = async () => {
        await saving;
        const known = open.get(conversation);
        const slot = known ?? (await freeSlot());
        open.delete(conversation);
        open.set(conversation, slot);
        // Nothing was saved, or with another model or codec: then the messages are read again.
        if (known === undefined) await service.restoreSlot(slot, cachePath(conversation)).catch(() => {});
        return slot;
      };
      const chosen = choosing.then(choose);
      choosing = chosen.catch(() => {});
      return chosen;
    },
    save(conversation) {
      const save = async () => {
        const slot = open.get(conversation);
        if (slot === undefined || !canStore || deleted.has(conversation)) return;
        const path = cachePath(conversation);
        await saveWithRoom(() => service.saveSlot(slot, path), path);
        await limitCaches();
      };
      const saved = saving.then(save);
      // Without space the conversation goes on all the same, and is read again after a reload.
      saving = saved.catch(() => {});
      return saved;
    },
  };
}

export async function deleteSession(conversation: string): Promise<void> {
  deleted.add(conversation);
  await saving;
  await deleteStoredFiles(cachePath(conversation)).catch(() => {});
}

/** A conversation that was deleted is here again. */
export const restoreSession = (conversation: string): boolean => deleted.delete(conversation);

/** Deletes the caches of all conversations, which are read again when they go on. */
export async function deleteAllCaches(): Promise<void> {
  await saving;
  await deleteCaches();
}

/** Deletes the caches of these conversations, and all stored models. */
export async function deleteAllStored(conversations: readonly string[]): Promise<void> {
  for (const conversation of conversations) deleted.add(conversation);
  await saving;
  await deleteStoredFiles();
}
