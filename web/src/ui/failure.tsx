/** Why there is no engine, and what else could run. The conversation stays. */
import { browserModel, connection, missingFile, reconnect, use, useModel } from '../state/connection.ts';
import { settings } from '../state/settings.ts';
import { texts } from '../texts/index.ts';
import { ModelFileButton } from './model-file-button.tsx';

export function Failure() {
  const { detail, place, phase } = connection.value;
  return (
    <div class="problem-row" role="alert">
      <p class="problem">
        {detail} {phase === 'lost' && texts.failure.goesOn}
      </p>
      <div class="row">
        {missingFile.value === undefined ? (
          <button type="button" class="button slim" onClick={() => void reconnect()}>
            {texts.failure.tryAgain}
          </button>
        ) : (
          <ModelFileButton label={texts.failure.choose(missingFile.value)} />
        )}
        {place === 'server' && (
          <button type="button" class="button slim" onClick={() => void use({ place: 'browser', device: 'wasm' })}>
            {texts.failure.useBrowser}
          </button>
        )}
        {place === 'browser' && settings.value.device === 'webgpu' && (
          <button type="button" class="button slim" onClick={() => void use({ device: 'wasm' })}>
            {texts.failure.useCpu}
          </button>
        )}
        {place === 'browser' && (browserModel.value || missingFile.value !== undefined) && (
          <button type="button" class="button slim" onClick={() => void useModel(undefined)}>
            {texts.failure.useMimir}
          </button>
        )}
      </div>
    </div>
  );
}
