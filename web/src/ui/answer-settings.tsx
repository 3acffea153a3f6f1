/** How answers are chosen, how long they may be, and what the model is told before. */
import { connection } from '../state/connection.ts';
import { change, type Settings, STYLES, type Style, settings } from '../state/settings.ts';
import { texts } from '../texts/index.ts';

/** Tokens of an answer; 0: as many as fit. */
const LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384, 0];

export function AnswerSettings() {
  const { temperature, topP, repetitionPenalty, seed, maxTokens, system } = settings.value;
  return (
    <section class="card" aria-labelledby="answers-title">
      <h2 id="answers-title">{texts.answers.title}</h2>
      <StylePicker />
      <Slider
        name="temperature"
        title={texts.answers.temperature}
        max={1.5}
        step={0.1}
        text={temperature === 0 ? texts.answers.zeroTemperature : String(temperature)}
      />
      <label class="field">
        <span>{texts.answers.maxLength}</span>
        <select value={String(maxTokens)} onChange={event => change({ maxTokens: Number(event.currentTarget.value) })}>
          {LENGTHS.map(length => (
            <option key={length} value={String(length)}>
              {length === 0 ? texts.answers.asContext : texts.tokens(length)}
            </option>
          ))}
        </select>
      </label>
      {connection.value.engine?.info.thinks && <ThinkingPicker />}
      <details>
        <summary>{texts.answers.more}</summary>
        <label class="field">
          <span>{texts.answers.system}</span>
          <textarea
            rows={3}
            value={system}
            placeholder={texts.answers.aboutSystem}
            onInput={event => change({ system: event.currentTarget.value })}
          />
        </label>
        <Slider
          name="topP"
          title={texts.answers.topP}
          min={0.05}
          max={1}
          step={0.05}
          text={topP === 1 ? texts.answers.allWords : String(topP)}
        />
        <Slider
          name="repetitionPenalty"
          title={texts.answers.penalty}
          min={1}
          max={1.5}
          step={0.05}
          text={repetitionPenalty === 1 ? texts.answers.noPenalty : String(repetitionPenalty)}
        />
        <label class="field">
          <span>{texts.answers.seed}</span>
          <input
            type="number"
            step={1}
            value={seed ?? ''}
            placeholder={texts.answers.noSeed}
            onInput={({ currentTarget: { valueAsNumber: value } }) =>
              change({ seed: Number.isSafeInteger(value) ? value : undefined })
            }
          />
        </label>
      </details>
    </section>
  );
}

/** For models that know it. */
const ThinkingPicker = () => (
  <label class="field">
    <span>{texts.answers.thinks}</span>
    <select
      value={{ true: 'yes', false: 'no' }[String(settings.value.thinks)] ?? ''}
      onChange={({ currentTarget: { value } }) => change({ thinks: value ? value === 'yes' : undefined })}
    >
      <option value="">{texts.answers.thinking.asModel}</option>
      <option value="yes">{texts.answers.thinking.yes}</option>
      <option value="no">{texts.answers.thinking.no}</option>
    </select>
  </label>
);

/** What the sliders say together, by one name. */
function StylePicker() {
  const names = Object.keys(STYLES) as Style[];
  const used = names.find(name => {
    const { temperature, topP } = STYLES[name];
    return temperature === settings.value.temperature && topP === settings.value.topP;
  });
  return (
    <label class="field">
      <span>{texts.answers.style}</span>
      <select value={used ?? ''} onChange={event => change(STYLES[event.currentTarget.value as Style])}>
        {!used && <option value="">{texts.answers.ownStyle}</option>}
        {names.map(name => (
          <option key={name} value={name}>
            {texts.answers.styles[name]}
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
