/** The saved conversations: to search, open, rename and delete. */
import { useSignal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { runs } from '../state/answering.ts';
import { remove, rename, startNew } from '../state/chat.ts';
import type { Conversation } from '../state/conversation.ts';
import { conversations, current, open } from '../state/conversations.ts';
import { searchConversations } from '../state/search.ts';
import { texts } from '../texts/index.ts';
import { askToDelete } from './deletion.tsx';
import { DeleteIcon, EditIcon, PlusIcon } from './icons.tsx';
import { onKeys } from './keys.ts';
import { isListShown } from './shortcuts.tsx';
import { ThemePicker } from './theme-picker.tsx';
import { isTransferShown } from './transfer-dialog.tsx';

export function Sidebar({ onChoose }: { onChoose(): void }) {
  const query = useSignal('');
  const found = searchConversations(conversations.value, query.value);
  const choose = (action: () => void) => {
    action();
    onChoose();
    document.getElementById('composer')?.focus();
  };
  return (
    <div class="sidebar">
      <button type="button" class="button primary wide" onClick={() => choose(startNew)}>
        <PlusIcon /> {texts.sidebar.startNew}
      </button>
      <input
        type="search"
        aria-label={texts.sidebar.search}
        placeholder={texts.sidebar.search}
        value={query.value}
        onInput={event => {
          query.value = event.currentTarget.value;
        }}
        onKeyDown={onKeys(event => {
          if (event.key === 'Enter' && query.value && found[0]) choose(() => open(found[0]!));
        })}
      />
      <nav aria-label={texts.app.conversations}>
        {conversations.value.length === 0 && <p class="quiet empty">{texts.sidebar.empty}</p>}
        {conversations.value.length > 0 && found.length === 0 && <p class="quiet empty">{texts.sidebar.noneFound}</p>}
        <ul>
          {found.map(conversation => (
            <Row key={conversation.id} conversation={conversation} onOpen={() => choose(() => open(conversation))} />
          ))}
        </ul>
      </nav>
      <div class="row sidebar-links">
        <button
          type="button"
          class="link"
          onClick={() => {
            isTransferShown.value = true;
          }}
        >
          {texts.sidebar.transfer}
        </button>
        <button
          type="button"
          class="link"
          onClick={() => {
            isListShown.value = true;
          }}
        >
          {texts.sidebar.shortcuts}
        </button>
      </div>
      <ThemePicker />
    </div>
  );
}

function Row({ conversation, onOpen }: { conversation: Conversation; onOpen(): void }) {
  const isRenaming = useSignal(false);
  const isRenamed = useSignal(false);
  const renameButton = useRef<HTMLButtonElement>(null);
  const { id } = conversation;
  useLayoutEffect(() => {
    if (isRenamed.value) renameButton.current?.focus();
    isRenamed.value = false;
  }, [isRenamed, isRenamed.value]);
  const title = conversation.title || texts.untitled;
  if (isRenaming.value)
    return (
      <li class="conversation">
        <TitleField
          title={conversation.title}
          onDone={(byKey, title) => {
            isRenaming.value = false;
            isRenamed.value = byKey;
            if (title !== undefined) rename(id, title);
          }}
        />
      </li>
    );
  return (
    <li class="conversation">
      <button
        type="button"
        class="conversation-title"
        aria-current={id === current.value.id ? 'true' : undefined}
        onClick={onOpen}
      >
        {title}
        {runs.value.has(id) && <span class="running" />}
      </button>
      <button
        ref={renameButton}
        type="button"
        class="icon-button small"
        onClick={() => {
          isRenaming.value = true;
        }}
        aria-label={texts.sidebar.rename(title)}
      >
        <EditIcon />
      </button>
      <button
        type="button"
        class="icon-button small"
        onClick={({ currentTarget }) =>
          askToDelete({
            ...{ question: texts.deletion.conversation(title), canUndo: true },
            ...{ onConfirm: () => void remove(id), button: currentTarget },
          })
        }
        aria-label={texts.sidebar.delete(title)}
      >
        <DeleteIcon />
      </button>
    </li>
  );
}

/** Enter, or leaving the field, takes the title; Escape does not. */
function TitleField({ title, onDone }: { title: string; onDone(byKey: boolean, title?: string): void }) {
  const field = useRef<HTMLInputElement>(null);
  const isDone = useRef(false);
  // Before the next key is pressed.
  useLayoutEffect(() => field.current?.select(), []);
  const finish = (byKey: boolean, title?: string) => {
    // The field is left, too, when it disappears.
    if (isDone.current) return;
    isDone.current = true;
    onDone(byKey, title);
  };
  return (
    <input
      ref={field}
      class="title-field"
      aria-label={texts.sidebar.titleField}
      maxLength={200}
      defaultValue={title}
      onBlur={event => finish(false, event.currentTarget.value)}
      onKeyDown={onKeys(event => {
        if (event.key !== 'Enter' && event.key !== 'Escape') return;
        // It stops no answer, closes no drawer, and does not press the button that gets the focus.
        event.stopPropagation();
        event.preventDefault();
        finish(true, event.key === 'Enter' ? event.currentTarget.value : undefined);
      })}
    />
  );
}
