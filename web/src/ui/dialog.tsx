/** A panel over the page: a drawer at its side on narrow screens, or a box in its middle. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { texts } from '../texts/index.ts';
import { CloseIcon } from './icons.tsx';

interface DialogProps {
  title: string;
  kind: 'drawer' | 'box';
  isOpen: boolean;
  onClose(): void;
  children: ComponentChildren;
}

export function Dialog({ title, kind, isOpen, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  // The event of closing comes later. If the dialog was asked for again by then, it would close that one.
  const isClosing = useRef(false);
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else if (dialog.current?.open) {
      isClosing.current = true;
      dialog.current.close();
    }
  }, [isOpen]);
  const noteClosed = () => {
    if (!isClosing.current) onClose();
    isClosing.current = false;
  };
  return (
    // A click on the backdrop is one on the dialog itself; Escape closes it by keyboard.
    // biome-ignore lint/a11y/useKeyWithClickEvents: see above
    <dialog
      ref={dialog}
      class={`dialog ${kind}`}
      aria-label={title}
      onClose={noteClosed}
      onClick={event => event.target === event.currentTarget && onClose()}
    >
      <div class="dialog-head">
        <h2>{title}</h2>
        <button type="button" class="icon-button" onClick={onClose} aria-label={texts.close}>
          <CloseIcon />
        </button>
      </div>
      {isOpen && children}
    </dialog>
  );
}
