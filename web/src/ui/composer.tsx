/** Where the user writes: text, documents, send and stop. */
import { useComputed } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { ACCEPTED } from '../documents/read-document.ts';
import { tokensInCache } from '../state/answering.ts';
import { connection } from '../state/connection.ts';
import { changeDraft, draft, removeAttachment } from '../state/drafts.ts';
import { texts } from '../texts/index.ts';
import { AttachmentCard, addFiles, attachmentError, ReadingCards, reading } from './attachments.tsx';
import { AttachIcon, SendIcon, StopIcon } from './icons.tsx';
import { onKeys } from './keys.ts';
import { Marked } from './marked.tsx';

interface ComposerProps {
  placeholder: string;
  isRunning: boolean;
  /** Takes the draft, if it can. */
  onSend(): void;
  onStop(): void;
}

export function Composer({ placeholder, isRunning, onSend, onStop }: ComposerProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const { engine } = connection.value;
  const { text, attachments } = draft.value;
  const isReading = reading.value.length > 0;
  const canSend = engine && !isRunning && !isReading && (text.trim() !== '' || attachments.length > 0);

  const overflow = useComputed(() => {
    const info = connection.value.engine?.info;
    const added = draft.value.attachments.reduce((sum, { tokens = 0 }) => sum + tokens, 0);
    const missing = info ? tokensInCache.value + added - info.context : 0;
    return missing > 0 ? texts.composer.tooLong(missing, info!.context) : '';
  });

  // The field grows with its text.
  useEffect(() => {
    const { current: area } = field;
    if (!area) return;
    area.style.height = 'auto';
    area.style.height = `${area.scrollHeight}px`;
  }, [text, placeholder]);

  useEffect(() => field.current?.focus(), []);

  const submit = (event?: Event) => {
    event?.preventDefault();
    if (canSend) onSend();
  };

  const onKeyDown = onKeys(event => {
    if (event.key === 'Enter' && !event.shiftKey) submit(event);
    if (event.key === 'ArrowUp' && text === '') editLast(event);
  });

  const onPaste = (event: ClipboardEvent) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    void addFiles(files);
  };

  const problem = attachmentError.value || overflow.value;
  return (
    <form class="composer" onSubmit={submit}>
      {(attachments.length > 0 || isReading) && (
        <div class="attachments">
          {attachments.map(item => (
            <AttachmentCard key={item.id} attachment={item} onRemove={() => removeAttachment(item.id)} />
          ))}
          <ReadingCards />
        </div>
      )}
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <textarea
        ref={field}
        id="composer"
        rows={1}
        aria-label={texts.composer.label}
        aria-describedby="composer-help"
        placeholder={placeholder}
        value={text}
        onInput={event => changeDraft({ text: event.currentTarget.value })}
        onKeyDown={onKeyDown}
        onPaste={onPaste}
      />
      <div class="composer-row">
        <button
          type="button"
          class="icon-button"
          onClick={() => picker.current?.click()}
          aria-label={texts.composer.addDocument}
        >
          <AttachIcon />
        </button>
        <input
          ref={picker}
          type="file"
          hidden
          multiple
          accept={ACCEPTED}
          onChange={event => {
            const { currentTarget: input } = event;
            void addFiles([...(input.files ?? [])]).then(() => {
              input.value = '';
              field.current?.focus();
            });
          }}
        />
        <span id="composer-help" class="hint">
          <Marked text={texts.composer.help} as="kbd" />
        </span>
        {isRunning ? (
          <button type="button" class="send stop" onClick={onStop} aria-label={texts.composer.stop}>
            <StopIcon />
          </button>
        ) : (
          <button type="submit" class="send" disabled={!canSend} aria-label={texts.composer.send}>
            <SendIcon />
          </button>
        )}
      </div>
    </form>
  );
}

/** As in a shell: the last message again. */
function editLast(event: KeyboardEvent): void {
  const buttons = document.querySelectorAll<HTMLButtonElement>('[data-edit]');
  if (buttons.length === 0) return;
  event.preventDefault();
  buttons[buttons.length - 1]!.click();
}
