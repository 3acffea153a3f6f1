/** Reading byte streams with little garbage: browsers collect large buffers late. */

const BUFFER_BYTES = 2 ** 20;

export type ReadChunks = (stream: ReadableStream<Uint8Array>) => AsyncGenerator<Uint8Array<ArrayBuffer>, void>;

/** Reads all streams into one buffer, where the runtime can. A chunk is valid until the next one is requested. */
export function createChunkReader(): ReadChunks {
  let spare: ArrayBuffer | undefined;
  return async function* readChunks(stream) {
    const reader = openReader(stream);
    let buffer = spare ?? new ArrayBuffer(BUFFER_BYTES);
    spare = undefined;
    try {
      for (;;) {
        const { value, done } = await reader.read(new Uint8Array(buffer));
        if (done) {
          buffer = (value as Uint8Array<ArrayBuffer> | undefined)?.buffer ?? buffer;
          return;
        }
        yield value as Uint8Array<ArrayBuffer>;
        if (reader instanceof ReadableStreamBYOBReader) buffer = value.buffer as ArrayBuffer;
      }
    } finally {
      await reader.cancel().catch(() => {});
      if (buffer.byteLength === BUFFER_BYTES) spare = buffer;
    }
  };
}

/** Not all runtimes can read every stream into a buffer of the caller. */
function openReader(stream: ReadableStream<Uint8Array>) {
  try {
    return stream.getReader({ mode: 'byob' });
  } catch (error) {
    if (!(error instanceof TypeError) || stream.locked) throw error;
    return stream.getReader() as ReadableStreamDefaultReader<Uint8Array> & {
      read(unused: Uint8Array): Promise<ReadableStreamReadResult<Uint8Array>>;
    };
  }
}
