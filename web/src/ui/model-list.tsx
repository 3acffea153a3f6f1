/** Models at a click: those that are known to run here, and any other of the hub by its name or address. */
import { useSignal } from '@preact/signals';
import { CATALOGUE, type CatalogueModel } from '../engine/catalogue.ts';
import { HUB } from '../engine/hub.ts';
import { changeHub, loadNamedModel } from '../state/hub-models.ts';
import { settings } from '../state/settings.ts';
import { texts } from '../texts/index.ts';

interface ListProps {
  isBusy: boolean;
  /** Called when a model has been found, and is being loaded. */
  onLoad?(): void;
}

export function ModelList({ isBusy, onLoad }: ListProps) {
  const isAsking = useSignal(false);
  const problem = useSignal('');
  const load = async (name: string) => {
    isAsking.value = true;
    problem.value = '';
    try {
      await loadNamedModel(name, onLoad);
    } catch (error) {
      problem.value = (error as Error).message;
    } finally {
      isAsking.value = false;
    }
  };
  const isDisabled = isBusy || isAsking.value;
  return (
    <div class="models-list">
      <ul>
        {CATALOGUE.map(model => (
          <ModelItem key={model.hub} model={model} isDisabled={isDisabled} onLoad={() => void load(model.hub)} />
        ))}
      </ul>
      <form
        class="row address"
        onSubmit={event => {
          event.preventDefault();
          void load(String(new FormData(event.currentTarget).get('name')));
        }}
      >
        <input
          type="text"
          name="name"
          required
          disabled={isDisabled}
          placeholder={texts.models.addressHint}
          aria-label={texts.models.address}
        />
        <button type="submit" class="button slim" disabled={isDisabled}>
          {texts.models.load}
        </button>
      </form>
      {problem.value && (
        <p class="problem" role="alert">
          {problem.value}
        </p>
      )}
      <HubField
        onChange={text => {
          problem.value = '';
          try {
            changeHub(text);
          } catch (error) {
            problem.value = (error as Error).message;
          }
        }}
      />
    </div>
  );
}

/** Where names of models are looked up: the hub, or a mirror of it. */
const HubField = ({ onChange }: { onChange(text: string): void }) => (
  <label class="field">
    <span>{texts.models.hub}</span>
    <input
      type="text"
      inputMode="url"
      value={settings.value.hub ?? ''}
      placeholder={HUB}
      onChange={event => onChange(event.currentTarget.value)}
    />
  </label>
);

interface ItemProps {
  model: CatalogueModel;
  isDisabled: boolean;
  onLoad(): void;
}

function ModelItem({ model, isDisabled, onLoad }: ItemProps) {
  const { name, bytes, license, context, f16Bytes, packedBytes, goodAt } = model;
  return (
    <li>
      <span>
        <strong>{name}</strong> {goodAt}
        <span class="quiet">
          {' '}
          {texts.models.about(bytes, license, context, packedBytes, f16Bytes)} {describeFit(model)}
        </span>
      </span>
      <button
        type="button"
        class="button slim"
        disabled={isDisabled}
        onClick={onLoad}
        aria-label={texts.models.loadModel(name)}
      >
        {texts.models.load}
      </button>
    </li>
  );
}

/** Browsers tell the memory of the device in GiB, rounded, at most 8 or 32; others tell nothing. */
function describeFit({ bytes, packedBytes, f16Bytes }: CatalogueModel): string {
  const { deviceMemory } = navigator as { deviceMemory?: number };
  if (deviceMemory === undefined) return '';
  const free = 0.5 * deviceMemory * 2 ** 30;
  if (bytes + f16Bytes < free) return texts.models.bothFit;
  return bytes + packedBytes < free ? texts.models.onlyPackedFits : texts.models.noneFits;
}
