/** Asks before something is deleted. */
import { signal } from '@preact/signals';
import { texts } from '../texts/index.ts';
import { Dialog } from './dialog.tsx';

interface Deletion {
  /** What is deleted, as a question. */
  question: string;
  /** What goes with it. */
  detail?: string;
  onConfirm(): void;
}

const asked = signal<Deletion | undefined>(undefined);

export const askToDelete = (deletion: Deletion): void => {
  asked.value = deletion;
};

export function DeletionDialog() {
  const close = () => {
    asked.value = undefined;
  };
  return (
    <Dialog title={asked.value?.question ?? ''} kind="box" isOpen={asked.value !== undefined} onClose={close}>
      {asked.value?.detail && <p>{asked.value.detail}</p>}
      <p class="quiet">{texts.deletion.isFinal}</p>
      <div class="row end">
        <button type="button" class="button" onClick={close}>
          {texts.cancel}
        </button>
        <button
          type="button"
          class="button danger"
          onClick={() => {
            asked.value?.onConfirm();
            close();
          }}
        >
          {texts.deletion.confirm}
        </button>
      </div>
    </Dialog>
  );
}
