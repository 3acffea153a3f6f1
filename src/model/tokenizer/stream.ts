/** Bytes of tokens in, text out, never half a character. */
export interface TextStream {
  /** Adds one token; returns the text that is complete by now, often ''. */
  push(id: number): string;
  /** Ends the text: an unfinished sequence becomes U+FFFD. The stream is then ready for a new text. */
  end(): string;
}

export function createTextStream(bytesOf: (id: number) => Uint8Array): TextStream {
  // TextDecoder holds incomplete sequences back itself, and turns invalid bytes into U+FFFD as the standard says.
  // A byte order mark is text like any other here.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  return {
    push: id => decoder.decode(bytesOf(id), { stream: true }),
    end: () => decoder.decode(),
  };
}
