/** A message with what can be done with it. */
import { useSignal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import type { Run } from '../state/answering.ts';
import { fork, regenerate } from '../state/chat.ts';
import { connection } from '../state/connection.ts';
import type { AnswerStats, Message } from '../state/conversation.ts';
import { changeEdit, editOf } from '../state/drafts.ts';
import { texts } from '../texts/index.ts';
import { NotAnswered, Unfinished } from './answer-end.tsx';
import { AttachmentCard } from './attachments.tsx';
import { CopyButton } from './copy-button.tsx';
import { EditIcon, ForkIcon, RetryIcon } from './icons.tsx';
import { Markdown } from './markdown.tsx';
import { MessageEditor } from './message-editor.tsx';
import { VersionPicker } from './version-picker.tsx';

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
  const edited = editOf(message.id);
  const isOpened = useSignal(false);
  const isClosed = useSignal(false);
  const button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (isClosed.value) button.current?.focus();
    isClosed.value = false;
  }, [isClosed, isClosed.value]);
  return (
    <article class="message question" aria-label={texts.messages.you}>
      {message.startsContext && <p class="left-out quiet">{texts.messages.leftOut}</p>}
      {message.attachments?.map(item => (
        <AttachmentCard key={item.id} attachment={item} />
      ))}
      {edited !== undefined ? (
        <MessageEditor
          message={message}
          text={edited}
          isBusy={isBusy}
          hasFocus={isOpened.value}
          onClose={() => {
            isClosed.value = true;
          }}
        />
      ) : (
        message.text && <div class="bubble">{message.text}</div>
      )}
      {edited === undefined && (
        <div class={message.versions ? 'actions has-versions' : 'actions'}>
          <VersionPicker message={message} isBusy={isBusy} />
          <button
            ref={button}
            type="button"
            class="icon-button small"
            data-edit
            disabled={isBusy}
            onClick={() => {
              isOpened.value = true;
              changeEdit(message.id, message.text);
            }}
            aria-label={texts.messages.edit}
          >
            <EditIcon />
          </button>
          <CopyButton text={message.text} />
        </div>
      )}
      {isLast && !isBusy && <NotAnswered />}
    </article>
  );
}

function Answer({ message, run, isBusy, isLast }: MessageProps) {
  const { text, reasoning, error, stats } = message;
  const { engine } = connection.value;
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
      {!run && isLast && <Unfinished message={message} />}
      {!run && (
        <div class="actions">
          <VersionPicker message={message} isBusy={isBusy} />
          <button
            type="button"
            class="icon-button small"
            disabled={isBusy || !engine}
            title={engine ? undefined : texts.messages.noEngine}
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
