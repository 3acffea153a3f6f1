/** Asks before something is deleted. */
import { signal } from '@preact/signals';
import { texts } from '../texts/index.ts';
import { Dialog } from './dialog.tsx';
import { focusNext } from './focus.ts';

interface Deletion {
  /** What is deleted, as a question. */
  question: string;
  /** What goes with it. */
  detail?: string;
  /** It can be taken back for some seconds. */
  canUndo?: boolean;
  onConfirm(): void;
  /** What was clicked: it may be gone afterwards. */
  button?: Element;
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
      {!asked.value?.canUndo && <p class="quiet">{texts.deletion.isFinal}</p>}
      <div class="row end">
        <button type="button" class="button" onClick={close}>
          {texts.cancel}
        </button>
        <button
          type="button"
          class="button danger"
          onClick={() => {
            const { button, onConfirm } = asked.value ?? {};
            if (button) focusNext(button.closest('li'));
            onConfirm?.();
            close();
          }}
        >
          {texts.deletion.confirm}
        </button>
      </div>
    </Dialog>
  );
}
