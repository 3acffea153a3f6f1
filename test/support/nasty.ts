/** The strings of `test/fixtures/nasty-strings.json`: a text, a text many times over, or bytes (hex) that are no UTF-8. */
import { readFileSync } from 'node:fs';

interface Entry {
  name: string;
  text?: string;
  times?: number;
  after?: string;
  bytes?: string;
}

export function nastyStrings(): { name: string; text: string }[] {
  const entries: Entry[] = JSON.parse(readFileSync(new URL('../fixtures/nasty-strings.json', import.meta.url), 'utf8'));
  return entries.map(({ name, text = '', times = 1, after = '', bytes }) => ({
    name,
    text: bytes === undefined ? text.repeat(times) + after : new TextDecoder().decode(Buffer.from(bytes, 'hex')),
  }));
}
