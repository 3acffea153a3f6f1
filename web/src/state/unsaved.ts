/** What is only in this tab, because it could not be saved. */
import { signal } from '@preact/signals';

/** Ids of conversations, and names of what is not finished. */
export const unsaved = signal<ReadonlySet<string>>(new Set());

export function noteSaved(id: string, isSaved: boolean): void {
  if (unsaved.value.has(id) !== isSaved) return;
  const rest = [...unsaved.value].filter(other => other !== id);
  unsaved.value = new Set(isSaved ? rest : [...rest, id]);
}

addEventListener('beforeunload', event => {
  if (unsaved.value.size > 0) event.preventDefault();
});
