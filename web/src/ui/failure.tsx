/** Why there is no engine, and what else could run. The conversation stays. */
import { browserModel, connection, reconnect, use, useModel } from '../state/connection.ts';
import { settings } from '../state/settings.ts';

export function Failure() {
  const { detail, place } = connection.value;
  return (
    <div class="problem-row" role="alert">
      <p class="problem">{detail}</p>
      <div class="row">
        <button type="button" class="button slim" onClick={() => void reconnect()}>
          Try again
        </button>
        {place === 'server' && (
          <button type="button" class="button slim" onClick={() => void use({ place: 'browser', device: 'wasm' })}>
            Use this browser
          </button>
        )}
        {place === 'browser' && settings.value.device === 'webgpu' && (
          <button type="button" class="button slim" onClick={() => void use({ device: 'wasm' })}>
            Use the CPU
          </button>
        )}
        {place === 'browser' && browserModel.value && (
          <button type="button" class="button slim" onClick={() => void useModel(undefined)}>
            Use Mimir
          </button>
        )}
      </div>
    </div>
  );
}
