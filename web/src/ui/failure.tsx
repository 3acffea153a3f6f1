/** Why there is no engine, and what else could run. The conversation stays. */
import { browserModel, connection, missingFile, reconnect, use, useModel } from '../state/connection.ts';
import { settings } from '../state/settings.ts';
import { ModelFileButton } from './model-file-button.tsx';

export function Failure() {
  const { detail, place, phase } = connection.value;
  return (
    <div class="problem-row" role="alert">
      <p class="problem">
        {detail}
        {phase === 'lost' && ' The page goes on by itself when it is back.'}
      </p>
      <div class="row">
        {missingFile.value === undefined ? (
          <button type="button" class="button slim" onClick={() => void reconnect()}>
            Try again
          </button>
        ) : (
          <ModelFileButton label={`Choose ${missingFile.value}`} />
        )}
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
        {place === 'browser' && (browserModel.value || missingFile.value !== undefined) && (
          <button type="button" class="button slim" onClick={() => void useModel(undefined)}>
            Use Mimir
          </button>
        )}
      </div>
    </div>
  );
}
