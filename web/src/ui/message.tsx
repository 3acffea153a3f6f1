/** A message with what can be done with it. */
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import type { Run } from '../state/answering.ts';
import { answerLast, edit, fork, goOn, regenerate, showVersion } from '../state/chat.ts';
import { connection } from '../state/connection.ts';
import { type AnswerStats, describeUnfinished, type Message } from '../state/conversation.ts';
import { texts } from '../texts/index.ts';
import { AttachmentCard } from './attachments.tsx';
import { CopyButton } from './copy-button.tsx';
import { EditIcon, ForkIcon, NextIcon, PreviousIcon, RetryIcon } from './icons.tsx';
import { onKeys } from './keys.ts';
import { Markdown } from './markdown.tsx';

interface MessageProps {
  message: Message;
  /** While it grows. */
  run?: Run;
  /** Whether something runs, so that nothing may be changed. */
  isBusy: boolean;
  /** Of the conversation. */
  isLast: boolean;
}

export function MessageView(props: MessageProps) {
  return props.message.role === 'user' ? <Question {...props} /> : <Answer {...props} />;
}

function Question({ message, isBusy, isLast }: MessageProps) {
  const isEditing = useSignal(false);
  return (
    <article class="message question" aria-label={texts.messages.you}>
      {message.attachments?.map(item => (
        <AttachmentCard key={item.id} attachment={item} />
      ))}
      {isEditing.value ? (
        <Editor
          text={message.text}
          onCancel={() => {
            isEditing.value = false;
          }}
          onSave={text =>
            void edit(message, text, () => {
              isEditing.value = false;
            })
          }
        />
      ) : (
        message.text && <div class="bubble">{message.text}</div>
      )}
      {!isEditing.value && (
        <div class={message.versions ? 'actions has-versions' : 'actions'}>
          <VersionPicker message={message} isBusy={isBusy} />
          <button
            type="button"
            class="icon-button small"
            data-edit
            disabled={isBusy}
            onClick={() => {
              isEditing.value = true;
            }}
            aria-label={texts.messages.edit}
          >
            <EditIcon />
          </button>
          <CopyButton text={message.text} />
        </div>
      )}
      {isLast && !isBusy && (
        <GoOn reason={texts.messages.notAnswered} label={texts.messages.giveAnswer} onClick={() => void answerLast()} />
      )}
    </article>
  );
}

function Editor({ text, onSave, onCancel }: { text: string; onSave(text: string): void; onCancel(): void }) {
  const draft = useSignal(text);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    field.current?.focus();
    field.current?.setSelectionRange(text.length, text.length);
  }, [text]);
  const save = () => draft.value.trim() && onSave(draft.value.trim());
  return (
    <div class="editor">
      <textarea
        ref={field}
        aria-label={texts.messages.editor}
        rows={3}
        value={draft.value}
        onInput={event => {
          draft.value = event.currentTarget.value;
        }}
        onKeyDown={onKeys(event => {
          if (event.key === 'Escape') {
            event.stopPropagation();
            onCancel();
          }
          if (event.key === 'Enter' && !event.shiftKey) {
            event.preventDefault();
            save();
          }
        })}
      />
      <div class="editor-row">
        <span class="editor-note quiet">{texts.messages.earlierKept}</span>
        <button type="button" class="button" onClick={onCancel}>
          {texts.cancel}
        </button>
        <button type="button" class="button primary" onClick={save}>
          {texts.messages.askAgain}
        </button>
      </div>
    </div>
  );
}

function Answer({ message, run, isBusy, isLast }: MessageProps) {
  const { text, reasoning, error, stats } = message;
  const hasBegun = Boolean(text || reasoning);
  const unfinished = run || !isLast ? undefined : describeUnfinished(message);
  return (
    <article class="message answer" aria-label={texts.messages.answer} aria-busy={run !== undefined}>
      {reasoning && (
        <details class="reasoning" open={run && !text}>
          <summary>{texts.messages.reasoning}</summary>
          <Markdown text={reasoning} />
        </details>
      )}
      {text && <Markdown text={text.trimStart()} />}
      {run && !text && !reasoning && <Reading run={run} />}
      {error && (
        <p class="problem" role="alert">
          {error}
        </p>
      )}
      {unfinished !== undefined && (
        <GoOn
          reason={unfinished}
          label={hasBegun ? texts.messages.goOn : texts.messages.giveAnswer}
          onClick={() => void (hasBegun ? goOn(message) : regenerate(message))}
        />
      )}
      {!run && (
        <div class="actions">
          <VersionPicker message={message} isBusy={isBusy} />
          <button
            type="button"
            class="icon-button small"
            disabled={isBusy}
            onClick={() => void regenerate(message)}
            aria-label={texts.messages.answerAgain}
          >
            <RetryIcon />
          </button>
          <button
            type="button"
            class="icon-button small"
            onClick={() => fork(message)}
            aria-label={texts.messages.fork}
          >
            <ForkIcon />
          </button>
          {text && <CopyButton text={text} />}
          {stats && <span class="quiet stats">{describeStats(stats)}</span>}
        </div>
      )}
    </article>
  );
}

/** The versions of a message, if there are several. */
function VersionPicker({ message, isBusy }: Pick<MessageProps, 'message' | 'isBusy'>) {
  if (!message.versions) return null;
  const { before, after } = message.versions;
  return (
    <>
      <button
        type="button"
        class="icon-button small"
        disabled={isBusy || before.length === 0}
        onClick={() => void showVersion(message, -1)}
        aria-label={texts.messages.previousVersion}
      >
        <PreviousIcon />
      </button>
      <span class="quiet versions">
        {before.length + 1} / {before.length + 1 + after.length}
      </span>
      <button
        type="button"
        class="icon-button small"
        disabled={isBusy || after.length === 0}
        onClick={() => void showVersion(message, 1)}
        aria-label={texts.messages.nextVersion}
      >
        <NextIcon />
      </button>
    </>
  );
}

function describeStats({ finish, completionTokens, decodeRate, reusedTokens, codec }: AnswerStats): string {
  return [
    texts.messages.finish[finish],
    texts.tokens(completionTokens),
    decodeRate > 0 && texts.rate(decodeRate),
    reusedTokens > 0 && texts.messages.reused(reusedTokens),
    codec,
  ]
    .filter(Boolean)
    .join(' · ');
}

/** What is missing, and how to get it. */
function GoOn({ reason, label, onClick }: { reason: string; label: string; onClick(): void }) {
  return (
    <p class="go-on">
      {reason && <span class="quiet">{reason}</span>}
      <button type="button" class="button slim" disabled={!connection.value.engine} onClick={onClick}>
        {label}
      </button>
    </p>
  );
}

/** While the prompt is read. */
function Reading({ run: { prefill } }: { run: Run }) {
  if (!prefill || prefill.total < SHOWN_PROMPT)
    return <p class="thinking" role="status" aria-label={texts.messages.reading} />;
  const { done, total, secondsLeft } = prefill;
  return (
    <div class="reading">
      <div class="reading-label">
        <span>{texts.messages.readingOf(done, total)}</span>
        <span class="quiet">{secondsLeft !== undefined && texts.messages.left(secondsLeft)}</span>
      </div>
      <progress value={done} max={total} aria-label={texts.messages.readingPrompt} />
    </div>
  );
}

/** Shorter prompts are read before a bar is of use. */
const SHOWN_PROMPT = 256;
