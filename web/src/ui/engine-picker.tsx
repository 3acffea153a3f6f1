/** Where the model runs, and the preset or codec of its cache; what the engine in use cannot change is not shown. */
import { useSignal } from '@preact/signals';
import { fileOf } from '../engine/browser.ts';
import { cachesFor } from '../engine/codecs.ts';
import { canStore } from '../engine/storage.ts';
import { runs } from '../state/answering.ts';
import {
  browserModel,
  connection,
  hasProfile,
  hasServer,
  missingFile,
  stopLoading,
  use,
  useModel,
} from '../state/connection.ts';
import { type Settings, settings } from '../state/settings.ts';
import { texts } from '../texts/index.ts';
import { LateModels } from './late-models.tsx';
import { ModelFileButton } from './model-file-button.tsx';

type Place = Pick<Settings, 'place' | 'device'>;

const SERVER: Place = { place: 'server', device: 'auto' };
const CPU: Place = { place: 'browser', device: 'wasm' };
const GPU: Place = { place: 'browser', device: 'webgpu' };

const CHOICES: readonly [string, Place][] = [
  [texts.engine.server, SERVER],
  [texts.engine.cpu, CPU],
  [texts.engine.gpu, GPU],
];

const canUseGpu = 'gpu' in navigator;

export function EnginePicker() {
  const isListOpen = useSignal(false);
  const { place } = connection.value;
  const choices = CHOICES.filter(([, choice]) => (choice === SERVER ? hasServer.value : choice === CPU || canUseGpu));
  const isBusy = runs.value.size > 0 || connection.value.phase === 'opening';
  const used = choices.findIndex(
    ([, choice]) => choice.place === place && (place === 'server' || choice.device === settings.value.device),
  );
  return (
    <section class="card" aria-labelledby="engine-title">
      <h2 id="engine-title">{texts.engine.title}</h2>
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
      <details
        class="models"
        onToggle={event => {
          isListOpen.value = event.currentTarget.open;
        }}
      >
        <summary>{texts.engine.hubModels}</summary>
        {isListOpen.value && <LateModels isBusy={isBusy} />}
      </details>
    </section>
  );
}

function ModelPicker({ isBusy }: { isBusy: boolean }) {
  const model = browserModel.value;
  const { engine, phase } = connection.value;
  const isLoading = phase === 'opening' && model !== undefined && 'url' in model;
  return (
    <div class="field">
      <span>
        {texts.engine.model} <strong>{missingFile.value ?? fileOf(model)}</strong>
      </span>
      {model && 'file' in model && canStore && (
        <span class="quiet">
          {texts.engine.untilLeft}{' '}
          <button
            type="button"
            class="button slim"
            disabled={isBusy}
            onClick={() => void useModel({ ...model, isKept: true })}
          >
            {texts.engine.keep(model.file.size)}
          </button>
        </span>
      )}
      <span class="row">
        <ModelFileButton label={texts.engine.openFile} isDisabled={isBusy} />
        {(model || missingFile.value !== undefined) && (
          <button type="button" class="button slim" disabled={isBusy} onClick={() => useModel(undefined)}>
            {texts.engine.mimir}
          </button>
        )}
      </span>
      {isLoading && (
        <>
          {engine && <span class="quiet">{texts.engine.untilThere(engine.info.name)}</span>}
          <button type="button" class="button slim" onClick={() => void stopLoading()}>
            {texts.engine.pause}
          </button>
        </>
      )}
    </div>
  );
}

function CachePicker({ isBusy }: { isBusy: boolean }) {
  const isMimir = browserModel.value === undefined;
  return (
    <fieldset class="codecs" disabled={isBusy}>
      <legend>{texts.engine.cache}</legend>
      <p class="codec codec-head quiet" aria-hidden="true">
        <span>{texts.engine.name}</span>
        <span>{texts.engine.bits}</span>
        <span>{isMimir ? texts.engine.recall : texts.engine.agreement}</span>
      </p>
      {cachesFor(hasProfile.value).map(({ name, bits, recall, agreement }) => (
        <label key={name} class="codec">
          <input
            type="radio"
            name="codec"
            checked={settings.value.codec === name}
            onChange={() => void use({ codec: name })}
          />
          <span class="codec-name">{name}</span>
          <span>{texts.engine.bitsOf(bits)}</span>
          <span class="quiet">{formatPercent(isMimir ? recall?.toFixed(2) : agreement?.toFixed(1))}</span>
        </label>
      ))}
      <p class="quiet">{isMimir ? texts.engine.aboutRecall : texts.engine.aboutAgreement}</p>
      {!isMimir && <p class="quiet">{hasProfile.value ? texts.engine.hasProfile : texts.engine.noProfile}</p>}
      {!isMimir && !hasProfile.value && (
        <span class="row">
          <ModelFileButton label={texts.engine.chooseProfile} accept=".kvprofile" isDisabled={isBusy} />
        </span>
      )}
    </fieldset>
  );
}

const formatPercent = (percent?: string): string => (percent === undefined ? '' : `${percent} %`);
