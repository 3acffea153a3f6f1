/** Decodes a stream of tokens to text, never splitting a character. */
export interface TextStream {
  /** Adds one token and returns the text that became complete, often ''. */
  push(id: number): string;
  /** Ends the text: an incomplete character becomes U+FFFD. The stream can then be reused. */
  end(): string;
}

export function createTextStream(bytesOf: (id: number) => Uint8Array): TextStream {
  // `ignoreBOM` keeps a byte order mark, which is a token like any other.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  return {
    push: id => decoder.decode(bytesOf(id), { stream: true }),
    end: () => decoder.decode(),
  };
}
