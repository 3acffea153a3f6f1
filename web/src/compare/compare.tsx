/** The same question with two caches: their memory and speed as bars, where the answers part, and both answers. */
import '../style/compare.css';
import { codecsFor } from '../engine/codecs.ts';
import { browserModel, hasProfile } from '../state/connection.ts';
import { texts } from '../texts/index.ts';
import { Alerts } from '../ui/alerts.tsx';
import { Composer } from '../ui/composer.tsx';
import { CopyButton } from '../ui/copy-button.tsx';
import {
  chooseCodec,
  compareDraft,
  compareSample,
  differences,
  documents,
  failure,
  isComparing,
  type Pane,
  panes,
  questions,
  stopComparing,
  summary,
} from './comparison.ts';
import { savePicture } from './picture.ts';
import { Race } from './race.tsx';
import { Strip } from './strip.tsx';

export { openAddress, stopComparing } from './comparison.ts';

export function Compare() {
  const [left, right] = panes;
  const isDone = summary.value !== undefined;
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <section class="thread" aria-label={texts.compare.label} tabIndex={0}>
        <div class="compare">
          {questions.value.length === 0 ? <Intro /> : <p class="bubble">{describeQuestion()}</p>}
          <figure class="card picture">
            <Race panes={[left.value, right.value]} />
            {isDone && <Result />}
          </figure>
          <div class="panes">
            <PaneView
              title={texts.compare.left}
              choice={texts.compare.codecLeft}
              pane={left}
              marks={isDone ? differences.value.map(({ left }) => left) : []}
            />
            <PaneView
              title={texts.compare.right}
              choice={texts.compare.codecRight}
              pane={right}
              marks={isDone ? differences.value.map(({ right }) => right) : []}
            />
          </div>
          {failure.value && (
            <p class="problem" role="alert">
              {failure.value}
            </p>
          )}
        </div>
      </section>
      <div class="bottom">
        <Alerts />
        <Composer
          placeholder={texts.compare.ask}
          isRunning={isComparing.value}
          onSend={() => {
            history.replaceState(null, '', location.pathname);
            void compareDraft();
          }}
          onStop={stopComparing}
        />
      </div>
    </>
  );
}

/** A document and questions that show what a cache is for, at a click. */
function Intro() {
  return (
    <div class="compare-intro">
      <h2>{texts.compare.title}</h2>
      <p class="quiet">{texts.compare.about(browserModel.value === undefined)}</p>
      <button type="button" class="button" disabled={isComparing.value} onClick={() => void compareSample()}>
        {texts.compare.start}
      </button>
    </div>
  );
}

/** "sample.txt, 5,540 tokens: 6 questions". */
function describeQuestion(): string {
  const tokens = panes[0].value.read.total;
  const [question] = questions.value;
  return [
    [...documents.value, ...(documents.value.length > 0 && tokens > 0 ? [texts.tokens(tokens)] : [])].join(', '),
    questions.value.length > 1 ? texts.compare.questions(questions.value.length) : question,
  ]
    .filter(Boolean)
    .join(': ');
}

/** Where the answers part, and what can be taken away: the picture, and an address that shows it again. */
function Result() {
  const [left, right] = panes.map(({ value }) => value) as [Pane, Pane];
  const probabilities = differences.value.flatMap(difference => difference.probabilities);
  const tokens = differences.value.flatMap(({ probabilities }, i) => left.answers[i]!.slice(0, probabilities.length));
  const picture = {
    panes: [left, right] as const,
    probabilities,
    summary: summary.value!,
    questions: questions.value,
    title: describeQuestion(),
  };
  return (
    <>
      <figcaption>{summary.value}</figcaption>
      <Strip probabilities={probabilities} tokens={tokens} summary={summary.value!} />
      <div class="picture-actions">
        <button type="button" class="button slim" onClick={() => void savePicture(picture)}>
          {texts.compare.saveImage}
        </button>
        {location.hash && <CopyButton name={texts.compare.copyAddress} text={location.href} />}
      </div>
    </>
  );
}

interface PaneProps {
  title: string;
  /** What the list of codecs is called. */
  choice: string;
  pane: (typeof panes)[number];
  /** Whether a token is only on this side, by answer. */
  marks: readonly (readonly boolean[])[];
}

function PaneView({ title, choice, pane, marks }: PaneProps) {
  const { codec, answers } = pane.value;
  return (
    <section class="pane card" aria-label={texts.compare.pane(title, codec)}>
      <div class="pane-head">
        <select
          aria-label={choice}
          value={codec}
          disabled={isComparing.value}
          onChange={event => chooseCodec(pane, event.currentTarget.value)}
        >
          {codecsFor(hasProfile.value).map(({ name, bits }) => (
            <option key={name} value={name}>
              {texts.compare.codec(name, bits)}
            </option>
          ))}
        </select>
        <span class="quiet">{describe(pane.value)}</span>
      </div>
      {answers.length === 0 && <p class="quiet">{texts.compare.noAnswer(codec)}</p>}
      {answers.map((tokens, i) => (
        <div key={i}>
          {questions.value.length > 1 && <p class="quiet">{questions.value[i]}</p>}
          <p class="tokens">
            {tokens.map(({ text }, j) => {
              const Tag = marks[i]?.[j] ? 'mark' : 'span';
              return <Tag key={j}>{j === 0 ? text.trimStart() : text}</Tag>;
            })}
          </p>
        </div>
      ))}
    </section>
  );
}

function describe({ phase, read: { done, total }, answers }: Pane): string {
  if (phase === 'waiting' || phase === 'loading') return texts.compare[phase];
  if (phase === 'reading') return total > 0 ? texts.compare.readingOf(done, total) : texts.compare.reading;
  const tokens = answers.flat().length;
  return tokens > 0 ? texts.tokens(tokens) : '';
}
