/** The caches of conversations in a Worker, saved in the site's storage: after a reload nothing is read again. */
import { deleteStored, type RemoteService } from 'kvasir/worker';

/** Conversations that stay in memory; others are restored when they are asked again. */
const MAX_OPEN = 4;

const pathOf = (conversation: string): string => `sessions/${conversation}.kvsession`;

export function createSessions(service: RemoteService) {
  /** Conversations by slot, the one that was used last at the end. */
  const open = new Map<string, number>();

  /** The slot of a conversation, restored if it was saved. */
  const slotOf = async (conversation: string): Promise<number> => {
    const known = open.get(conversation);
    if (known !== undefined) {
      open.delete(conversation);
      open.set(conversation, known);
      return known;
    }
    let slot = open.size;
    const [oldest] = open;
    if (open.size >= MAX_OPEN && oldest) {
      open.delete(oldest[0]);
      slot = oldest[1];
      await service.eraseSlot(slot);
    }
    open.set(conversation, slot);
    // Nothing was saved, or with another model or codec: then the messages are read again.
    await service.restoreSlot(slot, pathOf(conversation)).catch(() => {});
    return slot;
  };

  return {
    slotOf,
    /** Without space the conversation goes on, and is read again after a reload. */
    async save(conversation: string): Promise<void> {
      const slot = open.get(conversation);
      if (slot !== undefined) await service.saveSlot(slot, pathOf(conversation)).catch(() => {});
    },
  };
}

export const deleteSession = (conversation: string): Promise<void> =>
  deleteStored(pathOf(conversation)).catch(() => {});

/** Sessions and models. */
export const deleteEverything = (): Promise<void> => deleteStored().catch(() => {});
