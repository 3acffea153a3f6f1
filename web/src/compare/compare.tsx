/** Two panes with the same prompt and different codecs, and how far they diverge. */
import type { Signal } from '@preact/signals';
import { codecsFor } from '../engine/codecs.ts';
import { formatCount, formatRate } from '../format.ts';
import { browserModel } from '../state/connection.ts';
import { clearDraft, draft } from '../state/drafts.ts';
import { Composer } from '../ui/composer.tsx';
import {
  chooseCodec,
  compare,
  difference,
  failure,
  isComparing,
  type Pane,
  panes,
  question,
  stopComparing,
} from './comparison.ts';
import { DivergencePlot } from './plot.tsx';

export function Compare() {
  const { left, right, nats } = difference.value;
  const isDone = panes.every(({ value: { phase } }) => phase === 'done');
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <section class="thread" aria-label="Comparison" tabIndex={0}>
        <div class="compare">
          {question.value === '' ? (
            <div class="compare-intro">
              <h2>One prompt, two caches</h2>
              <p class="quiet">
                Both answer with the likeliest word each time, so that every difference comes from the codec. Tokens
                that only one of them has are marked.
              </p>
            </div>
          ) : (
            <p class="bubble">{question.value}</p>
          )}
          {isDone && nats.length > 0 && <DivergencePlot difference={difference.value} tokens={panes[0].value.tokens} />}
          <div class="panes">
            <PaneView title="Left" pane={panes[0]} marks={isDone ? left : []} />
            <PaneView title="Right" pane={panes[1]} marks={isDone ? right : []} />
          </div>
          {failure.value && (
            <p class="problem" role="alert">
              {failure.value}
            </p>
          )}
        </div>
      </section>
      <div class="bottom">
        <Composer
          placeholder="Ask both…"
          isRunning={isComparing.value}
          onSend={() => {
            const { text, attachments } = draft.value;
            clearDraft();
            void compare(text.trim(), attachments);
          }}
          onStop={stopComparing}
        />
      </div>
    </>
  );
}

function PaneView({ title, pane, marks }: { title: string; pane: Signal<Pane>; marks: readonly boolean[] }) {
  const { codec, tokens } = pane.value;
  return (
    <section class="pane card" aria-label={`${title}: ${codec}`}>
      <div class="pane-head">
        <select
          aria-label={`Codec on the ${title.toLowerCase()}`}
          value={codec}
          disabled={isComparing.value}
          onChange={event => chooseCodec(pane as (typeof panes)[number], event.currentTarget.value)}
        >
          {codecsFor(!browserModel.value).map(({ name, bits }) => (
            <option key={name} value={name}>
              {name}, {bits} bits
            </option>
          ))}
        </select>
        <span class="quiet">{describe(pane.value)}</span>
      </div>
      {tokens.length === 0 && <p class="quiet">The answer with {codec} appears here.</p>}
      <p class="tokens">
        {tokens.map(({ text }, i) => {
          const Tag = marks[i] ? 'mark' : 'span';
          return <Tag key={i}>{text}</Tag>;
        })}
      </p>
    </section>
  );
}

function describe({ phase, read: { done, total }, tokens, rate }: Pane): string {
  if (phase === 'waiting' || phase === 'loading') return `${phase}…`;
  if (phase === 'reading') return total > 0 ? `reading ${formatCount(done)} of ${formatCount(total)}` : 'reading…';
  return tokens.length > 0
    ? `${tokens.length} token${tokens.length === 1 ? '' : 's'}${rate > 0 ? `, ${formatRate(rate)}` : ''}`
    : '';
}
