/**
 * GPT-2's byte-to-unicode table: each of the 256 bytes is written as one printable character, so that a byte-level
 * vocabulary can be a list of strings. Printable Latin-1 maps to itself; the 68 other bytes map to U+0100 and up.
 */
export const byteToUnicode: readonly string[] = (() => {
  const isPrintable = (byte: number) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
})();

const UNICODE_TO_BYTE = new Map(byteToUnicode.map((char, byte) => [char, byte]));

const utf8 = new TextEncoder();

/** The UTF-8 bytes of a text, each written as its character of `byteToUnicode`. */
export function bytesToUnicode(text: string): string {
  let result = '';
  for (const byte of utf8.encode(text)) result += byteToUnicode[byte];
  return result;
}

/** The inverse of `bytesToUnicode`. A character outside the table becomes its own UTF-8 bytes. */
export function unicodeToBytes(text: string): Uint8Array {
  const bytes: number[] = [];
  for (const char of text) {
    const byte = UNICODE_TO_BYTE.get(char);
    if (byte === undefined) bytes.push(...utf8.encode(char));
    else bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}

/** The byte of a SentencePiece byte token such as `<0x0A>`; undefined for any other token. */
export function parseHexToken(text: string): number | undefined {
  const match = /^<0x([0-9A-Fa-f]{2})>$/.exec(text);
  return match ? Number.parseInt(match[1], 16) : undefined;
}

export function formatHexToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}
