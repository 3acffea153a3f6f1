/** Where the model runs, and the preset or codec of its cache; what the engine in use cannot change is not shown. */
import { useRef } from 'preact/hooks';
import { cachesFor } from '../engine/codecs.ts';
import { run } from '../state/chat.ts';
import { browserModel, connection, hasServer, use, useModel } from '../state/connection.ts';
import { type Settings, settings } from '../state/settings.ts';

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
          onChange={event => void use(choices[Number(event.currentTarget.value)]![1])}
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
          <CachePicker isBusy={isBusy} />
        </>
      )}
    </section>
  );
}

function ModelPicker({ isBusy }: { isBusy: boolean }) {
  const picker = useRef<HTMLInputElement>(null);
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
          <button type="button" class="button slim" disabled={isBusy} onClick={() => useModel(undefined)}>
            Mimir
          </button>
        )}
      </span>
      <input
        ref={picker}
        type="file"
        hidden
        accept=".gguf"
        onChange={event => {
          const { currentTarget: input } = event;
          if (input.files?.[0]) useModel(input.files[0]);
          // The same file can be chosen again after it has changed.
          input.value = '';
        }}
      />
      <form
        class="row address"
        onSubmit={event => {
          event.preventDefault();
          useModel(String(new FormData(event.currentTarget).get('url')));
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

function CachePicker({ isBusy }: { isBusy: boolean }) {
  const isMimir = browserModel.value === undefined;
  return (
    <fieldset class="codecs" disabled={isBusy}>
      <legend>Cache</legend>
      <p class="codec codec-head quiet" aria-hidden="true">
        <span>Name</span>
        <span>Bits</span>
        <span>{isMimir ? 'Recall' : 'As f16'}</span>
      </p>
      {cachesFor(isMimir).map(({ name, bits, recall, agreement }) => (
        <label key={name} class="codec">
          <input
            type="radio"
            name="codec"
            checked={settings.value.codec === name}
            onChange={() => void use({ codec: name })}
          />
          <span class="codec-name">{name}</span>
          <span>{bits} bits</span>
          <span class="quiet">{formatPercent(isMimir ? recall?.toFixed(2) : agreement?.toFixed(1))}</span>
        </label>
      ))}
      <p class="quiet">
        {isMimir
          ? 'Recall: facts that Mimir finds in documents of 6,000 tokens. Bits: per number in the cache.'
          : 'As f16: how often the likeliest next token is the same. Measured with SmolLM2-135M on six kinds of text; your model may differ.'}
      </p>
    </fieldset>
  );
}

const formatPercent = (percent?: string): string => (percent === undefined ? '' : `${percent} %`);
