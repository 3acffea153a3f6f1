/** Answers of /v1/responses that later requests continue: in memory, per tenant, the newest ones. */
import type { Limits } from './limits.ts';
import type { OpenaiMessage } from './openai-schemas.ts';
import type { OutputItem, ResponseObject } from './response-output.ts';

export interface StoredResponse {
  response: ResponseObject;
  /** The conversation up to its answer, without `instructions`. */
  messages: readonly OpenaiMessage[];
}

export interface ResponseStore {
  /** Drops the oldest ones if there is no room. One that has no room alone is not stored. */
  add(tenant: string, stored: StoredResponse): void;
  get(tenant: string, id: string): StoredResponse | undefined;
  /** An item of one of the answers. */
  findItem(tenant: string, id: string): OutputItem | undefined;
  /** False if there is none. */
  delete(tenant: string, id: string): boolean;
}

interface Shelf {
  /** Oldest first. */
  entries: Map<string, { stored: StoredResponse; characters: number }>;
  /** Of all answers, by their ids: a request may name thousands. */
  items: Map<string, OutputItem>;
  characters: number;
}

export function createResponseStore(limits: Limits): ResponseStore {
  const shelves = new Map<string, Shelf>();
  const remove = (tenant: string, id: string): boolean => {
    const shelf = shelves.get(tenant);
    const entry = shelf?.entries.get(id);
    if (!shelf || !entry) return false;
    shelf.entries.delete(id);
    for (const item of entry.stored.response.output) shelf.items.delete(item.id);
    shelf.characters -= entry.characters;
    if (shelf.entries.size === 0) shelves.delete(tenant);
    return true;
  };
  return {
    add(tenant, stored) {
      // Turns of a conversation share most messages, and each counts all of them: an upper bound.
      const characters = JSON.stringify(stored).length;
      if (characters > limits.storedCharacters) return;
      const shelf = shelves.get(tenant) ?? { entries: new Map(), items: new Map(), characters: 0 };
      shelves.set(tenant, shelf);
      shelf.entries.set(stored.response.id, { stored, characters });
      for (const item of stored.response.output) shelf.items.set(item.id, item);
      shelf.characters += characters;
      for (const id of shelf.entries.keys()) {
        if (shelf.entries.size <= limits.storedResponses && shelf.characters <= limits.storedCharacters) break;
        remove(tenant, id);
      }
    },
    get: (tenant, id) => shelves.get(tenant)?.entries.get(id)?.stored,
    findItem: (tenant, id) => shelves.get(tenant)?.items.get(id),
    delete: remove,
  };
}
