/** What this site has stored in the browser, with the means to delete it. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { canStore, deleteStoredFiles, readStorage, type Storage } from '../engine/storage.ts';
import { formatBytes, formatCount } from '../format.ts';
import { runs } from '../state/answering.ts';
import { removeAll } from '../state/chat.ts';
import { connection, useModel } from '../state/connection.ts';
import { conversations } from '../state/conversations.ts';
import { showNotice } from '../state/notice.ts';
import { askToDelete } from './deletion.tsx';
import { DeleteIcon } from './icons.tsx';

export function StorageCard() {
  const storage = useSignal<Storage | undefined>(undefined);
  const refresh = async () => {
    if (canStore) storage.value = await readStorage();
  };
  const remove = async (path?: string) => {
    await (path ? deleteStoredFiles(path).catch(error => showNotice(error.message)) : removeAll());
    await refresh();
  };
  // Models and caches are stored when one is loaded, and after an answer.
  useEffect(() => void refresh(), [connection.value.phase, runs.value.size, conversations.value.length]);
  const { models = [], caches, usage = 0, quota = 0 } = storage.value ?? {};
  const count = conversations.value.length;
  const { phase, place } = connection.value;
  return (
    <section class="card" aria-labelledby="storage-title">
      <h2 id="storage-title">Stored in this browser</h2>
      <ul class="stored">
        <li>
          <span>
            {count === 0 ? 'No conversations' : `${formatCount(count)} conversation${count === 1 ? '' : 's'}`}
            {!!caches?.count && <span class="quiet">, caches {formatBytes(caches.bytes)}</span>}
          </span>
        </li>
        {models.map(({ name, folder, path, bytes, isComplete }) => (
          <li key={folder}>
            <span class="stored-name">{name}</span>
            <span class="quiet">{formatBytes(bytes)}</span>
            {isComplete && place === 'browser' && (
              <button
                type="button"
                class="button slim"
                disabled={phase === 'opening'}
                onClick={() => void useModel({ path })}
                aria-label={`Use ${name}`}
              >
                Use
              </button>
            )}
            <button
              type="button"
              class="icon-button small"
              onClick={() =>
                askToDelete({
                  question: `Delete ${name}?`,
                  detail: 'Then it must be downloaded or chosen again.',
                  onConfirm: () => void remove(folder),
                })
              }
              aria-label={`Delete ${name}`}
            >
              <DeleteIcon />
            </button>
          </li>
        ))}
      </ul>
      {storage.value && (
        <p class="quiet">
          {formatBytes(usage)} of {formatBytes(quota)} in use, with the app itself
        </p>
      )}
      {(count > 0 || models.length > 0 || !!caches?.count) && (
        <button
          type="button"
          class="button slim"
          onClick={() => askToDelete({ ...DELETE_ALL, onConfirm: () => void remove() })}
        >
          Delete all that is stored
        </button>
      )}
    </section>
  );
}

const DELETE_ALL = {
  question: 'Delete all that is stored?',
  detail: 'All conversations, their caches, and the models that this site has stored.',
};
