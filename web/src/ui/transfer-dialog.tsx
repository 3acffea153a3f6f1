/** Conversations to files, and back. */
import { signal } from '@preact/signals';
import { useRef } from 'preact/hooks';
import { importConversations } from '../state/chat.ts';
import type { Conversation } from '../state/conversation.ts';
import { conversations, current } from '../state/conversations.ts';
import { texts } from '../texts/index.ts';
import { Dialog } from './dialog.tsx';
import { saveFile } from './save-file.ts';

export const isTransferShown = signal(false);

export function TransferDialog() {
  const picker = useRef<HTMLInputElement>(null);
  const close = () => {
    isTransferShown.value = false;
  };
  const { title, messages } = current.value;
  const hasMessages = messages.length > 0;
  return (
    <Dialog title={texts.transfer.title} kind="box" isOpen={isTransferShown.value} onClose={close}>
      <p class="quiet">{texts.transfer.about}</p>
      <div class="column-of-buttons">
        <button
          type="button"
          class="button"
          disabled={!hasMessages}
          onClick={() => exportFile(title, 'md', [current.value])}
        >
          {texts.transfer.asMarkdown}
        </button>
        <button
          type="button"
          class="button"
          disabled={!hasMessages}
          onClick={() => exportFile(title, 'json', [current.value])}
        >
          {texts.transfer.asJson}
        </button>
        <button
          type="button"
          class="button"
          disabled={conversations.value.length === 0}
          onClick={() => exportFile(texts.transfer.allFileName, 'json', conversations.value)}
        >
          {texts.transfer.allAsJson}
        </button>
        <button type="button" class="button" onClick={() => picker.current?.click()}>
          {texts.transfer.importJson}
        </button>
      </div>
      <input
        ref={picker}
        type="file"
        hidden
        accept=".json"
        onChange={event => {
          const [file] = event.currentTarget.files ?? [];
          if (file) void importConversations(file);
          close();
        }}
      />
    </Dialog>
  );
}

async function exportFile(title: string, kind: 'json' | 'md', list: readonly Conversation[]): Promise<void> {
  const { fileNameOf, toJson, toMarkdown } = await import('../state/transfer.ts');
  const [text, type] =
    kind === 'json' ? [toJson(list), 'application/json'] : [list.map(toMarkdown).join('\n'), 'text/markdown'];
  saveFile(new Blob([text], { type }), fileNameOf(title, kind));
}
