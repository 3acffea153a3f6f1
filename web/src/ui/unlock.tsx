/** Asks for the API key of a server. */
import { useSignal } from '@preact/signals';
import { unlock } from '../state/connection.ts';
import { apiKey } from '../state/settings.ts';
import { texts } from '../texts/index.ts';

export function Unlock() {
  const key = useSignal('');
  const wasRefused = apiKey.read() !== undefined;
  return (
    <form
      class="notice-box"
      onSubmit={event => {
        event.preventDefault();
        if (key.value) void unlock(key.value);
      }}
    >
      <h2>{texts.unlock.title}</h2>
      {wasRefused && (
        <p class="problem" role="alert">
          {texts.unlock.refused}
        </p>
      )}
      <label>
        {texts.unlock.key}
        <input
          type="password"
          autocomplete="off"
          value={key.value}
          onInput={event => {
            key.value = event.currentTarget.value;
          }}
        />
      </label>
      <p class="quiet">{texts.unlock.about}</p>
      <button type="submit" class="button primary">
        {texts.unlock.unlock}
      </button>
    </form>
  );
}
