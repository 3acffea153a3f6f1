/** Conversations to files, and back. */
import { signal } from '@preact/signals';
import { useRef } from 'preact/hooks';
import { importConversations } from '../state/chat.ts';
import { conversations, current } from '../state/conversations.ts';
import { fileNameOf, toJson, toMarkdown } from '../state/transfer.ts';
import { Dialog } from './dialog.tsx';

export const isTransferShown = signal(false);

export function TransferDialog() {
  const picker = useRef<HTMLInputElement>(null);
  const close = () => {
    isTransferShown.value = false;
  };
  const { title, messages } = current.value;
  const hasMessages = messages.length > 0;
  return (
    <Dialog title="Export and import" kind="box" isOpen={isTransferShown.value} onClose={close}>
      <p class="quiet">
        JSON has everything: documents, and earlier versions. It can be imported in another browser. Markdown is for
        reading.
      </p>
      <div class="column-of-buttons">
        <button
          type="button"
          class="button"
          disabled={!hasMessages}
          onClick={() => download(fileNameOf(title, 'md'), toMarkdown(current.value), 'text/markdown')}
        >
          This conversation as Markdown
        </button>
        <button
          type="button"
          class="button"
          disabled={!hasMessages}
          onClick={() => download(fileNameOf(title, 'json'), toJson([current.value]), 'application/json')}
        >
          This conversation as JSON
        </button>
        <button
          type="button"
          class="button"
          disabled={conversations.value.length === 0}
          onClick={() => download('conversations.json', toJson(conversations.value), 'application/json')}
        >
          All conversations as JSON
        </button>
        <button type="button" class="button" onClick={() => picker.current?.click()}>
          Import JSON
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

function download(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement('a'), { href: url, download: name }).click();
  // The browser reads it after the click.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
