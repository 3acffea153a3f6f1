/** Asks for the API key of a server. */
import { useSignal } from '@preact/signals';
import { unlock } from '../state/connection.ts';
import { apiKey } from '../state/settings.ts';

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
      <h2>This server needs a key</h2>
      {wasRefused && (
        <p class="problem" role="alert">
          The server does not accept this key.
        </p>
      )}
      <label>
        API key
        <input
          type="password"
          autocomplete="off"
          value={key.value}
          onInput={event => {
            key.value = event.currentTarget.value;
          }}
        />
      </label>
      <p class="quiet">It is kept until this tab is closed.</p>
      <button type="submit" class="button primary">
        Unlock
      </button>
    </form>
  );
}
