/** Models at a click: those that are known to run here, and any other of the hub by its name or address. */
import { useSignal } from '@preact/signals';
import { CATALOGUE, type CatalogueModel } from '../engine/catalogue.ts';
import { formatBytes, formatCount } from '../format.ts';
import { loadNamedModel } from '../state/connection.ts';
import { showNotice } from '../state/notice.ts';

export function ModelList({ isBusy }: { isBusy: boolean }) {
  const isAsking = useSignal(false);
  const load = async (name: string) => {
    isAsking.value = true;
    await loadNamedModel(name).catch(error => showNotice((error as Error).message));
    isAsking.value = false;
  };
  const isDisabled = isBusy || isAsking.value;
  return (
    <details class="models">
      <summary>Models from the hub</summary>
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
          placeholder="owner/name:Q4_K_M, or https://…"
          aria-label="Name of a model on the hub, or an address; it is kept in this browser"
        />
        <button type="submit" class="button slim" disabled={isDisabled}>
          Load
        </button>
      </form>
    </details>
  );
}

interface ItemProps {
  model: CatalogueModel;
  isDisabled: boolean;
  onLoad(): void;
}

function ModelItem({ model, isDisabled, onLoad }: ItemProps) {
  const { title, bytes, license, context, f16Bytes, packedBytes, goodAt } = model;
  return (
    <li>
      <span>
        <strong>{title}</strong> {goodAt}
        <span class="quiet">
          {' '}
          {formatBytes(bytes)}, {license}. {formatCount(context)} tokens take {formatBytes(packedBytes)} packed,{' '}
          {formatBytes(f16Bytes)} in f16.{fitsHere(bytes + packedBytes) ? '' : ' More than this device may have.'}
        </span>
      </span>
      <button type="button" class="button slim" disabled={isDisabled} onClick={onLoad} aria-label={`Load ${title}`}>
        Load
      </button>
    </li>
  );
}

/** Browsers tell the memory of the device in GiB, rounded, at most 8 or 32; others tell nothing. */
function fitsHere(bytes: number): boolean {
  const { deviceMemory } = navigator as { deviceMemory?: number };
  return deviceMemory === undefined || bytes < 0.5 * deviceMemory * 2 ** 30;
}
