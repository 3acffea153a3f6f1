/** The strings of `test/fixtures/edge-case-strings.json`: a text, a repeated text, or bytes (hex) that are not valid UTF-8. */
import { readFileSync } from 'node:fs';

interface Entry {
  name: string;
  text?: string;
  times?: number;
  after?: string;
  bytes?: string;
}

export function edgeCaseStrings(): { name: string; text: string }[] {
  const entries: Entry[] = JSON.parse(
    readFileSync(new URL('../fixtures/edge-case-strings.json', import.meta.url), 'utf8'),
  );
  return entries.map(({ name, text = '', times = 1, after = '', bytes }) => ({
    name,
    text: bytes === undefined ? text.repeat(times) + after : new TextDecoder().decode(Buffer.from(bytes, 'hex')),
  }));
}
