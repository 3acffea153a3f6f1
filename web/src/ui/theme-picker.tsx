/** Light, dark, or as the system is set. */
import { change, settings, type Theme } from '../state/settings.ts';
import { texts } from '../texts/index.ts';

const THEMES: readonly Theme[] = ['auto', 'light', 'dark'];

export function ThemePicker() {
  return (
    <fieldset class="segments">
      <legend class="hidden">{texts.sidebar.theme}</legend>
      {THEMES.map(theme => (
        <label key={theme}>
          <input
            type="radio"
            name="theme"
            checked={settings.value.theme === theme}
            onChange={() => change({ theme })}
          />
          <span>{texts.sidebar.themes[theme]}</span>
        </label>
      ))}
    </fieldset>
  );
}
