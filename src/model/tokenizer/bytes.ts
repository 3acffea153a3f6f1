/**
 * GPT-2's disguise for bytes: each of the 256 bytes is written as one printable character, so that a vocabulary can
 * be a list of strings. Printable Latin-1 stands for itself; the 68 others are moved up to U+0100 and on, in order.
 */
export const disguisedBytes: readonly string[] = (() => {
  const printable = (byte: number) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
  let moved = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : 0x100 + moved++));
})();

const BYTE_OF_CHAR = new Map(disguisedBytes.map((char, byte) => [char, byte]));

const utf8 = new TextEncoder();

/** A text's UTF-8 bytes, disguised. */
export function disguise(text: string): string {
  let result = '';
  for (const byte of utf8.encode(text)) result += disguisedBytes[byte];
  return result;
}

/** The bytes that a byte-level token's text stands for. A character outside the disguise stands for its own UTF-8. */
export function bytesOfDisguised(text: string): Uint8Array {
  const bytes: number[] = [];
  for (const char of text) {
    const byte = BYTE_OF_CHAR.get(char);
    if (byte === undefined) bytes.push(...utf8.encode(char));
    else bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}

/** The byte that a token such as `<0x0A>` stands for. */
export function byteOfHexToken(text: string): number | undefined {
  const match = /^<0x([0-9A-Fa-f]{2})>$/.exec(text);
  return match ? Number.parseInt(match[1]!, 16) : undefined;
}

export function hexToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}
