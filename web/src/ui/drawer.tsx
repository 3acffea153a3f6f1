/** A panel over the page, on narrow screens. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { CloseIcon } from './icons.tsx';

interface DrawerProps {
  title: string;
  isOpen: boolean;
  onClose(): void;
  children: ComponentChildren;
}

export function Drawer({ title, isOpen, onClose, children }: DrawerProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return (
    // A click on the backdrop is one on the dialog itself; Escape closes it by keyboard.
    // biome-ignore lint/a11y/useKeyWithClickEvents: see above
    <dialog
      ref={dialog}
      class="drawer"
      aria-label={title}
      onClose={onClose}
      onClick={event => event.target === event.currentTarget && onClose()}
    >
      <div class="drawer-head">
        <h2>{title}</h2>
        <button type="button" class="icon-button" onClick={onClose} aria-label="Close">
          <CloseIcon />
        </button>
      </div>
      {isOpen && children}
    </dialog>
  );
}
