/** How answers are chosen, how long they may be, and what the model is told before. */
import { formatCount } from '../format.ts';
import { change, type Settings, STYLES, settings } from '../state/settings.ts';

/** Tokens of an answer; 0: as many as fit. */
const LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384, 0];

export function AnswerSettings() {
  const { temperature, topP, repetitionPenalty, seed, maxTokens, system } = settings.value;
  return (
    <section class="card" aria-labelledby="answers-title">
      <h2 id="answers-title">Answers</h2>
      <StylePicker />
      <Slider
        name="temperature"
        title="Temperature"
        max={1.5}
        step={0.1}
        text={temperature === 0 ? '0: always the likeliest word' : String(temperature)}
      />
      <label class="field">
        <span>Maximum length</span>
        <select value={String(maxTokens)} onChange={event => change({ maxTokens: Number(event.currentTarget.value) })}>
          {LENGTHS.map(length => (
            <option key={length} value={String(length)}>
              {length === 0 ? 'As long as the context' : `${formatCount(length)} tokens`}
            </option>
          ))}
        </select>
      </label>
      <details>
        <summary>More</summary>
        <label class="field">
          <span>System prompt</span>
          <textarea
            rows={3}
            value={system}
            placeholder="What the model is told before each conversation"
            onInput={event => change({ system: event.currentTarget.value })}
          />
        </label>
        <Slider
          name="topP"
          title="Top-p"
          min={0.05}
          max={1}
          step={0.05}
          text={topP === 1 ? '1: all words' : String(topP)}
        />
        <Slider
          name="repetitionPenalty"
          title="Repetition penalty"
          min={1}
          max={1.5}
          step={0.05}
          text={repetitionPenalty === 1 ? '1: none' : String(repetitionPenalty)}
        />
        <label class="field">
          <span>Seed</span>
          <input
            type="number"
            step={1}
            value={seed ?? ''}
            placeholder="Another one each time"
            onInput={({ currentTarget: { valueAsNumber: value } }) =>
              change({ seed: Number.isSafeInteger(value) ? value : undefined })
            }
          />
        </label>
      </details>
    </section>
  );
}

/** What the sliders say together, by one name. */
function StylePicker() {
  const used = Object.entries(STYLES).find(
    ([, { temperature, topP }]) => temperature === settings.value.temperature && topP === settings.value.topP,
  );
  return (
    <label class="field">
      <span>Style</span>
      <select value={used?.[0] ?? ''} onChange={event => change(STYLES[event.currentTarget.value] ?? {})}>
        {!used && <option value="">Your own</option>}
        {Object.keys(STYLES).map(name => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

interface SliderProps {
  name: keyof Pick<Settings, 'temperature' | 'topP' | 'repetitionPenalty'>;
  title: string;
  min?: number;
  max: number;
  step: number;
  /** The value in words. */
  text: string;
}

function Slider({ name, title, min = 0, max, step, text }: SliderProps) {
  return (
    <label class="slider">
      <span>
        {title} <span class="value">{text}</span>
      </span>
      <input
        type="range"
        {...{ min, max, step }}
        value={settings.value[name]}
        onInput={event => change({ [name]: event.currentTarget.valueAsNumber })}
      />
    </label>
  );
}
