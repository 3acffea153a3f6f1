/** Saves a file where the browser saves downloads. */

/** The browser reads it after the click, when the user has chosen where. */
const READ_MS = 60_000;

export function saveFile(file: Blob, name: string): void {
  const href = URL.createObjectURL(file);
  Object.assign(document.createElement('a'), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), READ_MS);
}
