/** Where the model runs, and the codec of its cache; what the engine in use cannot change is not shown. */
import { useRef } from 'preact/hooks';
import { ASKED, CODECS, type CodecChoice } from '../engine/codecs.ts';
import { run } from '../state/chat.ts';
import { browserModel, connection, hasServer, modelFile, reconnect } from '../state/connection.ts';
import { change, type Settings, settings } from '../state/settings.ts';

type Place = Pick<Settings, 'place' | 'device'>;

const SERVER: Place = { place: 'server', device: 'auto' };
const CPU: Place = { place: 'browser', device: 'wasm' };
const GPU: Place = { place: 'browser', device: 'webgpu' };

const CHOICES: readonly [string, Place][] = [
  ['This server', SERVER],
  ['This browser, on the CPU', CPU],
  ['This browser, on the GPU', GPU],
];

const canUseGpu = 'gpu' in navigator;

export function EnginePicker() {
  const { place } = connection.value;
  const choices = CHOICES.filter(([, choice]) => (choice === SERVER ? hasServer.value : choice === CPU || canUseGpu));
  const isBusy = run.value !== undefined || connection.value.phase === 'opening';
  const used = choices.findIndex(
    ([, choice]) => choice.place === place && (place === 'server' || choice.device === settings.value.device),
  );
  return (
    <section class="card" aria-labelledby="engine-title">
      <h2 id="engine-title">Runs on</h2>
      {choices.length > 1 && (
        <select
          aria-labelledby="engine-title"
          disabled={isBusy}
          value={String(Math.max(0, used))}
          onChange={event => {
            change(choices[Number(event.currentTarget.value)]![1]);
            void reconnect();
          }}
        >
          {choices.map(([label], i) => (
            <option key={label} value={String(i)}>
              {label}
            </option>
          ))}
        </select>
      )}
      {place === 'browser' && (
        <>
          <ModelPicker isBusy={isBusy} />
          <CodecPicker isBusy={isBusy} />
        </>
      )}
    </section>
  );
}

function ModelPicker({ isBusy }: { isBusy: boolean }) {
  const picker = useRef<HTMLInputElement>(null);
  const use = (model: File | string | undefined) => {
    modelFile.value = model instanceof File ? model : undefined;
    change({ modelUrl: typeof model === 'string' ? model : undefined });
    if (model && CODECS.find(({ spec }) => spec === settings.value.codec)?.isCalibrated) change({ codec: 'tq4' });
    void reconnect();
  };
  return (
    <div class="field">
      <span>
        Model: <strong>{nameOf(browserModel.value)}</strong>
      </span>
      <span class="row">
        <button type="button" class="button slim" disabled={isBusy} onClick={() => picker.current?.click()}>
          Open a .gguf file
        </button>
        {browserModel.value && (
          <button type="button" class="button slim" disabled={isBusy} onClick={() => use(undefined)}>
            Mimir
          </button>
        )}
      </span>
      <input
        ref={picker}
        type="file"
        hidden
        accept=".gguf"
        onChange={event => event.currentTarget.files?.[0] && use(event.currentTarget.files[0])}
      />
      <form
        class="row"
        onSubmit={event => {
          event.preventDefault();
          use(String(new FormData(event.currentTarget).get('url')));
        }}
      >
        <input
          type="url"
          name="url"
          required
          disabled={isBusy}
          placeholder="https://…/model.gguf"
          aria-label="Address of a .gguf file; it is kept in this browser"
        />
        <button type="submit" class="button slim" disabled={isBusy}>
          Load
        </button>
      </form>
    </div>
  );
}

/** A file's name, or the end of its address. */
function nameOf(model: File | string | undefined): string {
  if (model === undefined) return 'Mimir';
  if (model instanceof File) return model.name;
  return decodeURIComponent(new URL(model, document.baseURI).pathname.split('/').pop() ?? model);
}

function CodecPicker({ isBusy }: { isBusy: boolean }) {
  const isMimir = browserModel.value === undefined;
  return (
    <fieldset class="codecs" disabled={isBusy}>
      <legend>Cache codec</legend>
      {CODECS.filter(({ isCalibrated }) => isMimir || !isCalibrated).map(choice => (
        <label key={choice.spec} class="codec">
          <input
            type="radio"
            name="codec"
            checked={settings.value.codec === choice.spec}
            onChange={() => {
              change({ codec: choice.spec });
              void reconnect();
            }}
          />
          <span class="codec-name">{choice.spec}</span>
          <span>{choice.bits} bits</span>
          {isMimir && <span class="quiet">{recallOf(choice)}</span>}
        </label>
      ))}
      {isMimir && <p class="quiet">Percent: facts recalled from documents of 6,000 tokens.</p>}
    </fieldset>
  );
}

const recallOf = ({ recalled }: CodecChoice): string => `${((100 * recalled) / ASKED).toFixed(2)} %`;
