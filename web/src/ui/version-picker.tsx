/** The versions of a message, if there are several. */
import { showVersion } from '../state/chat.ts';
import type { Message } from '../state/conversation.ts';
import { texts } from '../texts/index.ts';
import { NextIcon, PreviousIcon } from './icons.tsx';

export function VersionPicker({ message, isBusy }: { message: Message; isBusy: boolean }) {
  if (!message.versions) return null;
  const { before, after } = message.versions;
  const [shown, count] = [before.length + 1, before.length + 1 + after.length];
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
      <span class="quiet versions" role="img" aria-label={texts.messages.versionOf(shown, count)}>
        {shown} / {count}
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
