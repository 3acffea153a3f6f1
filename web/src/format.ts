/** Numbers for people, without words. */

/** As in the language of the page. */
export const formatCount = (count: number): string =>
  Math.round(count).toLocaleString(globalThis.document?.documentElement.lang || 'en');

export function formatBytes(bytes: number): string {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  const step = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** step;
  return `${value >= 100 || step === 0 ? value.toFixed(0) : value.toPrecision(3)} ${units[step]}`;
}

export function formatSeconds(seconds: number): string {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** A small number with two significant digits, such as .00013. */
export const formatSmall = (value: number): string =>
  value === 0 ? '0' : value < 1e-4 ? value.toExponential(1) : value.toPrecision(2).replace(/^0\./, '.');

export const formatRate = (perSecond: number): string =>
  perSecond >= 100 ? String(Math.round(perSecond)) : perSecond.toPrecision(2);
