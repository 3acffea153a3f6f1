/** What can be done where an answer is missing, or its end. */
import { answerLast, continueElsewhere, goOn, leaveOutOldest, regenerate } from '../state/chat.ts';
import { connection } from '../state/connection.ts';
import { canLeaveOut, describeUnfinished, isFull, type Message } from '../state/conversation.ts';
import { current } from '../state/conversations.ts';
import { texts } from '../texts/index.ts';
import { useFocusAfter } from './focus.ts';

/** Of a question. */
export const NotAnswered = () => (
  <AnswerEnd reason={texts.messages.notAnswered} ways={[[texts.messages.giveAnswer, answerLast]]} />
);

/** Of an answer that is not complete. */
export function Unfinished({ message }: { message: Message }) {
  const reason = describeUnfinished(message);
  if (reason === undefined) return null;
  // Alone, the question would not fit elsewhere either.
  if (isFull(message, connection.value.engine?.info.context) && canLeaveOut(current.value.messages))
    return (
      <AnswerEnd
        reason={message.error === undefined ? texts.messages.full : ''}
        ways={[
          [texts.messages.continueElsewhere, () => continueElsewhere(message)],
          [texts.messages.leaveOut, () => leaveOutOldest(message)],
        ]}
      />
    );
  const hasBegun = Boolean(message.text || message.reasoning);
  return (
    <AnswerEnd
      reason={reason}
      ways={[
        hasBegun ? [texts.messages.goOn, () => goOn(message)] : [texts.messages.giveAnswer, () => regenerate(message)],
      ]}
    />
  );
}

interface EndProps {
  /** What is missing. */
  reason: string;
  /** How to get it. */
  ways: readonly (readonly [label: string, go: () => Promise<void>])[];
}

function AnswerEnd({ reason, ways }: EndProps) {
  useFocusAfter();
  const { engine } = connection.value;
  return (
    <p class="go-on">
      {reason && <span class="quiet">{reason}</span>}
      {ways.map(([label, go]) => (
        <button
          key={label}
          type="button"
          class="button slim"
          disabled={!engine}
          title={engine ? undefined : texts.messages.noEngine}
          onClick={() => void go()}
        >
          {label}
        </button>
      ))}
    </p>
  );
}
