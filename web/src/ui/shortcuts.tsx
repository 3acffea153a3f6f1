/** Keys that do something anywhere on the page, and the list of all. */
import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { Dialog } from './dialog.tsx';

/** As docs/web.md has them. `Ctrl` is `⌘` on a Mac. */
export const SHORTCUTS: readonly (readonly [keys: string, action: string])[] = [
  ['Enter', 'send the message'],
  ['Shift Enter', 'start a new line'],
  ['Escape', 'stop the answer'],
  ['↑ in an empty message', 'edit the last question'],
  ['Ctrl Shift O', 'start a new conversation'],
  ['Ctrl K', 'search conversations'],
  ['/', 'write a message'],
  ['?', 'show this list'],
];

export const isListShown = signal(false);

const isMac = /Mac|iPhone|iPad/.test(globalThis.navigator?.platform ?? '');

export interface ShortcutActions {
  stop(): void;
  startNew(): void;
  search(): void;
  write(): void;
}

/** The action of a key; undefined if it has none. `isInField`: it writes there. */
export function actionOf(
  {
    key,
    ctrlKey,
    metaKey,
    shiftKey,
    altKey,
  }: Pick<KeyboardEvent, 'key' | 'ctrlKey' | 'metaKey' | 'shiftKey' | 'altKey'>,
  isInField: boolean,
): keyof ShortcutActions | 'list' | undefined {
  if (altKey) return undefined;
  if (ctrlKey || metaKey) {
    if (key.toLowerCase() === 'o' && shiftKey) return 'startNew';
    return key.toLowerCase() === 'k' && !shiftKey ? 'search' : undefined;
  }
  if (key === 'Escape') return 'stop';
  if (isInField) return undefined;
  return key === '/' ? 'write' : key === '?' ? 'list' : undefined;
}

export function useShortcuts(actions: ShortcutActions): void {
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      // There, Escape closes the panel.
      if (document.querySelector('dialog[open]')) return;
      const isInField = (event.target as Element).matches?.('input, textarea, select') ?? false;
      const action = actionOf(event, isInField);
      if (!action) return;
      if (action !== 'stop') event.preventDefault();
      if (action === 'list') isListShown.value = true;
      else actions[action]();
    };
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  });
}

export function ShortcutList() {
  const close = () => {
    isListShown.value = false;
  };
  return (
    <Dialog title="Keyboard shortcuts" kind="box" isOpen={isListShown.value} onClose={close}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, action]) => (
          <div key={keys}>
            <dt>
              {keys.split(' ').map((word, i) => (
                <Key key={i} word={word} />
              ))}
            </dt>
            <dd>{action}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

/** Keys begin with a capital letter or a sign; other words say where. */
const Key = ({ word }: { word: string }) =>
  /^[a-z]/.test(word) ? <span>{word} </span> : <kbd>{isMac && word === 'Ctrl' ? '⌘' : word}</kbd>;
