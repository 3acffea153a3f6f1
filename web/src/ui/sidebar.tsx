/** The saved conversations. */
import { runs } from '../state/answering.ts';
import { remove, startNew } from '../state/chat.ts';
import { conversations, current, open } from '../state/conversations.ts';
import { DeleteIcon, PlusIcon } from './icons.tsx';
import { ThemePicker } from './theme-picker.tsx';

export function Sidebar({ onChoose }: { onChoose(): void }) {
  const choose = (action: () => void) => () => {
    action();
    onChoose();
    document.getElementById('composer')?.focus();
  };
  return (
    <div class="sidebar">
      <button type="button" class="button primary wide" onClick={choose(startNew)}>
        <PlusIcon /> New conversation
      </button>
      <nav aria-label="Conversations">
        {conversations.value.length === 0 && <p class="quiet empty">Conversations are saved in this browser.</p>}
        <ul>
          {conversations.value.map(conversation => (
            <li key={conversation.id} class="conversation">
              <button
                type="button"
                class="conversation-title"
                aria-current={conversation.id === current.value.id ? 'true' : undefined}
                onClick={choose(() => open(conversation))}
              >
                {conversation.title || 'Untitled'}
                {runs.value.has(conversation.id) && <span class="running" />}
              </button>
              <button
                type="button"
                class="icon-button small"
                onClick={() => confirm(`Delete “${conversation.title || 'Untitled'}”?`) && void remove(conversation.id)}
                aria-label={`Delete ${conversation.title || 'conversation'}`}
              >
                <DeleteIcon />
              </button>
            </li>
          ))}
        </ul>
      </nav>
      <ThemePicker />
    </div>
  );
}
