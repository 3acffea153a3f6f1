/** The messages of the conversation that is shown. */
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { messages, run } from '../state/answering.ts';
import { current } from '../state/conversations.ts';
import { texts } from '../texts/index.ts';
import { DownIcon } from './icons.tsx';
import { MessageView } from './message.tsx';
import { Welcome } from './welcome.tsx';

/** Pixels from the end within which the view follows the answer. */
const NEAR = 80;

export function Thread() {
  const view = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const lastTop = useRef(0);
  const isAway = useSignal(false);
  const shown = messages.value;
  const { id } = current.value;

  useEffect(() => {
    follows.current = true;
  }, [id, shown.length]);
  useEffect(() => {
    if (follows.current) view.current?.scrollTo({ top: view.current.scrollHeight });
  });

  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = view.current!;
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR;
    // A long part that is added puts the end far away, too: then it is still followed.
    follows.current = isNear || (follows.current && scrollTop >= lastTop.current);
    lastTop.current = scrollTop;
    isAway.value = !follows.current;
  };

  const jumpToEnd = () => {
    follows.current = true;
    view.current?.scrollTo({ top: view.current.scrollHeight });
    document.getElementById('composer')?.focus();
  };

  return (
    <div class="thread-frame">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <section class="thread" ref={view} onScroll={onScroll} aria-label={texts.messages.conversation} tabIndex={0}>
        <div class="column">
          {shown.length === 0 ? (
            <Welcome />
          ) : (
            shown.map((message, i) => (
              <MessageView
                key={message.id}
                message={message}
                run={message.id === run.value?.message.id ? run.value : undefined}
                isBusy={run.value !== undefined}
                isLast={i === shown.length - 1}
              />
            ))
          )}
        </div>
      </section>
      {isAway.value && (
        <button type="button" class="jump" onClick={jumpToEnd} aria-label={texts.messages.toEnd}>
          <DownIcon />
        </button>
      )}
    </div>
  );
}
