/** What this site has stored in the browser, with the means to delete it. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { deleteProfile } from '../engine/profiles.ts';
import { deleteAllCaches } from '../engine/sessions.ts';
import { canStore, deleteStoredFiles, readStorage, type Storage, type StoredModel } from '../engine/storage.ts';
import { formatBytes } from '../format.ts';
import { runs } from '../state/answering.ts';
import { removeAll } from '../state/chat.ts';
import { connection, forgetModel, openHere } from '../state/connection.ts';
import { conversations } from '../state/conversations.ts';
import { showNotice } from '../state/notice.ts';
import { texts } from '../texts/index.ts';
import { askToDelete } from './deletion.tsx';
import { DeleteIcon } from './icons.tsx';

export function StorageCard() {
  const storage = useSignal<Storage | undefined>(undefined);
  const refresh = async () => {
    if (canStore) storage.value = await readStorage();
  };
  const remove = async (model: StoredModel) => {
    await deleteProfile(model);
    await deleteStoredFiles(model.folder).then(
      () => forgetModel(model),
      error => showNotice(error.message),
    );
    await refresh();
  };
  // Models and caches are stored when one is loaded, and after an answer.
  useEffect(() => void refresh(), [connection.value.phase, runs.value.size, conversations.value.length]);
  const { models = [], caches, usage = 0, quota = 0 } = storage.value ?? {};
  const count = conversations.value.length;
  return (
    <section class="card" aria-labelledby="storage-title">
      <h2 id="storage-title">{texts.storage.title}</h2>
      <ul class="stored">
        <li>
          <span>{texts.storage.conversations(count)}</span>
        </li>
        {!!caches?.count && (
          <li>
            <span>{texts.storage.caches(caches.bytes)}</span>
            <button
              type="button"
              class="icon-button small"
              onClick={({ currentTarget }) =>
                askToDelete({
                  question: texts.deletion.question(texts.storage.theCaches),
                  detail: texts.storage.aboutCaches,
                  onConfirm: () => void deleteAllCaches().then(refresh),
                  button: currentTarget,
                })
              }
              aria-label={texts.storage.deleteCaches}
            >
              <DeleteIcon />
            </button>
          </li>
        )}
        {models.map(model => (
          <li key={model.folder}>
            <span class="stored-name">{model.name}</span>
            <span class="quiet">{formatBytes(model.bytes)}</span>
            <OpenButton model={model} />
            <button
              type="button"
              class="icon-button small"
              onClick={({ currentTarget }) =>
                askToDelete({
                  question: texts.deletion.question(model.name),
                  detail: texts.storage.modelDetail,
                  onConfirm: () => void remove(model),
                  button: currentTarget,
                })
              }
              aria-label={texts.sidebar.delete(model.name)}
            >
              <DeleteIcon />
            </button>
          </li>
        ))}
      </ul>
      {storage.value && <p class="quiet">{texts.storage.inUse(usage, quota)}</p>}
      {(count > 0 || models.length > 0 || !!caches?.count) && (
        <button
          type="button"
          class="button slim"
          onClick={() => askToDelete({ ...DELETE_ALL, onConfirm: () => void removeAll().then(refresh) })}
        >
          {texts.storage.deleteAll}
        </button>
      )}
    </section>
  );
}

/** Opens a stored model, or goes on with its download. */
function OpenButton({ model: { name, path, source, isComplete } }: { model: StoredModel }) {
  const canGoOn = source !== undefined && URL.canParse(source);
  if (!isComplete && !canGoOn) return null;
  return (
    <button
      type="button"
      class="button slim"
      disabled={connection.value.phase === 'opening'}
      onClick={() => void openHere(isComplete ? { path } : { url: source! })}
      aria-label={isComplete ? texts.storage.useModel(name) : texts.storage.goOnWith(name)}
    >
      {isComplete ? texts.storage.use : texts.storage.goOn}
    </button>
  );
}

const DELETE_ALL = {
  question: texts.storage.deleteAllQuestion,
  detail: texts.storage.deleteAllDetail,
};
