/** Keys that do something anywhere on the page, and the list of all. */
import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { texts } from '../texts/index.ts';
import { Dialog } from './dialog.tsx';
import { onKeys } from './keys.ts';

const { keys } = texts.shortcuts;

interface Shortcut {
  keys: readonly string[];
  where?: string;
  action: string;
}

/** As docs/web.md has them. `Ctrl` is `⌘` on a Mac. */
export const SHORTCUTS: readonly Shortcut[] = [
  { keys: [keys.enter], action: texts.shortcuts.send },
  { keys: [keys.shift, keys.enter], action: texts.shortcuts.newLine },
  { keys: [keys.escape], action: texts.shortcuts.stop },
  { keys: ['↑'], where: texts.shortcuts.inEmptyMessage, action: texts.shortcuts.editLast },
  { keys: [keys.ctrl, keys.shift, 'O'], action: texts.shortcuts.startNew },
  { keys: [keys.ctrl, 'K'], action: texts.shortcuts.search },
  { keys: ['/'], action: texts.shortcuts.write },
  { keys: ['?'], action: texts.shortcuts.list },
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
    const onKeyDown = onKeys((event: KeyboardEvent) => {
      // There, Escape closes the panel.
      if (document.querySelector('dialog[open]')) return;
      const isInField = (event.target as Element).matches?.('input, textarea, select') ?? false;
      const action = actionOf(event, isInField);
      if (!action) return;
      if (action !== 'stop') event.preventDefault();
      if (action === 'list') isListShown.value = true;
      else actions[action]();
    });
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  });
}

export function ShortcutList() {
  const close = () => {
    isListShown.value = false;
  };
  return (
    <Dialog title={texts.shortcuts.title} kind="box" isOpen={isListShown.value} onClose={close}>
      <dl class="shortcuts">
        {SHORTCUTS.map(({ keys, where, action }) => (
          <div key={action}>
            <dt>
              {keys.map(name => (
                <Key key={name} name={name} />
              ))}
              {where && <span>{where}</span>}
            </dt>
            <dd>{action}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

const Key = ({ name }: { name: string }) => <kbd>{isMac && name === keys.ctrl ? '⌘' : name}</kbd>;
