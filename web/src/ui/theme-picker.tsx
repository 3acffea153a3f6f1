/** Light, dark, or as the system is set. */
import { change, settings, type Theme } from '../state/settings.ts';

const THEMES: readonly [Theme, string][] = [
  ['auto', 'Auto'],
  ['light', 'Light'],
  ['dark', 'Dark'],
];

export function ThemePicker() {
  return (
    <fieldset class="segments">
      <legend class="hidden">Theme</legend>
      {THEMES.map(([theme, label]) => (
        <label key={theme}>
          <input
            type="radio"
            name="theme"
            checked={settings.value.theme === theme}
            onChange={() => change({ theme })}
          />
          <span>{label}</span>
        </label>
      ))}
    </fieldset>
  );
}
