/** Where the focus goes when the element that had it is gone. Without this, the keyboard begins at the top of the page. */
import { useEffect } from 'preact/hooks';

/** Waits until the page shows what has changed, and a dialog that asked is closed. */
function whenLost(work: () => void): void {
  requestAnimationFrame(() => {
    if (document.querySelector('dialog.box[open]')) return whenLost(work);
    // A dialog gives the focus back when it is closed, and the element goes after that.
    setTimeout(() => document.activeElement === document.body && work(), 0);
  });
}

/** When a component goes: to the conversation. On a phone, a field would open the keyboard. */
export function useFocusAfter(): void {
  useEffect(() => () => whenLost(() => document.querySelector<HTMLElement>('.thread')?.focus()), []);
}

/** To the next item of a list, the one before, or what is above the list. */
export function focusNext(item: Element | null): void {
  const list = item?.parentElement;
  if (!list) return;
  const index = [...list.children].indexOf(item);
  whenLost(() => {
    const next = list.children[Math.min(index, list.children.length - 1)];
    const around = list.closest('.sidebar, .card');
    (next?.querySelector('button') ?? around?.querySelector('button'))?.focus();
  });
}
