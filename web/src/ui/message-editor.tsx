/** A question that is being changed. What is written stays until it is asked or cancelled, after a reload too. */
import { useEffect, useRef } from 'preact/hooks';
import { edit } from '../state/chat.ts';
import { connection } from '../state/connection.ts';
import type { Message } from '../state/conversation.ts';
import { changeEdit } from '../state/drafts.ts';
import { texts } from '../texts/index.ts';
import { useFocusAfter } from './focus.ts';
import { onKeys } from './keys.ts';

interface EditorProps {
  message: Message;
  text: string;
  isBusy: boolean;
  /** Whether the user has just opened it. */
  hasFocus: boolean;
  onClose(): void;
}

export function MessageEditor({ message, text, isBusy, hasFocus, onClose }: EditorProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const { current: area } = field;
    if (!hasFocus || !area) return;
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }, [hasFocus]);
  useFocusAfter();
  const { engine } = connection.value;
  const cancel = () => {
    changeEdit(message.id, undefined);
    onClose();
  };
  const save = () => {
    if (engine && !isBusy && text.trim()) void edit(message, text.trim());
  };
  return (
    <div class="editor">
      <textarea
        ref={field}
        aria-label={texts.messages.editor}
        rows={3}
        value={text}
        onInput={event => changeEdit(message.id, event.currentTarget.value)}
        onKeyDown={onKeys(event => {
          if (event.key === 'Escape') {
            event.stopPropagation();
            cancel();
          }
          if (event.key === 'Enter' && !event.shiftKey) {
            event.preventDefault();
            save();
          }
        })}
      />
      <div class="editor-row">
        <span class="editor-note quiet">{engine ? texts.messages.earlierKept : texts.messages.noEngine}</span>
        <button type="button" class="button" onClick={cancel}>
          {texts.cancel}
        </button>
        <button type="button" class="button primary" disabled={!engine || isBusy} onClick={save}>
          {texts.messages.askAgain}
        </button>
      </div>
    </div>
  );
}
